/* SPDX-License-Identifier: MIT */
/* Keeps answers of /v1/responses. A request can then name an earlier answer (previous_response_id)
 * and send only what is new in the conversation.
 *
 * An answer holds its own input and output as JSON items, and refers to the answer before it:
 *
 *   resp_1 <-- resp_2 <-- resp_3      a conversation
 *                 ^------ resp_4      the same conversation, continued in another way
 *
 * Together the answers take at most a fixed part of the memory for requests. If a request needs
 * that memory, the answer that was used longest ago is dropped first; its items stay as long as a
 * later answer refers to them. Only the client that made an answer can find it. All functions may
 * be called from any thread. */
#ifndef SERVER_KEPT_H
#define SERVER_KEPT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server_memory.h"

typedef struct server_kept_answer {
    struct server_kept_answer *before; /* the earlier answer of the conversation; holds a reference;
                                        * NULL: none */
    uint64_t client;
    uint64_t charged;
    size_t size;
    char *text; /* items with a comma between them */
    /* Under the lock. */
    unsigned references;
    char id[48];
    struct server_kept_answer *older, *newer; /* the list of answers that can be found */
} server_kept_answer;

typedef struct server_kept {
    server_memory_account *memory; /* set at the start */
    uint64_t most;
    pthread_mutex_t lock;
    /* Under the lock. */
    server_kept_answer *oldest, *newest;
    uint64_t bytes; /* of all answers, also of those that are not listed */
} server_kept;

/* From now on, kept answers are dropped whenever memory for a request is short. */
void server_kept_open(server_kept *kept, server_memory_account *memory);
void server_kept_free(server_kept *kept);

/* Begins an answer to the request's input `items`. It cannot be found before server_kept_finish().
 * Takes over the reference to the answer `before` it. NULL: there is no room. */
server_kept_answer *server_kept_begin(server_kept *kept, uint64_t client,
                                      server_kept_answer *before, const char *items, size_t size);
/* Adds the output items. From now on the answer can be found by its id. False: there is no room. */
bool server_kept_finish(server_kept *kept, server_kept_answer *answer, const char *id,
                        const char *items, size_t size);
/* Finds this client's answer by its id. Returns a reference, to be released by
 * server_kept_release(), or NULL if there is none. */
server_kept_answer *server_kept_find(server_kept *kept, uint64_t client, const char *id);
void server_kept_release(server_kept *kept, server_kept_answer **answer);
uint64_t server_kept_bytes(server_kept *kept);

#endif
