/* SPDX-License-Identifier: MIT */
/* Answers of /v1/responses that are kept, so that a request can name the one before it and sends
 * only what is new (previous_response_id).
 *
 * An answer keeps its own input and output, as items in JSON, and refers to the one before it:
 *
 *   resp_1 <-- resp_2 <-- resp_3      a conversation
 *                 ^------ resp_4      the same, gone on in another way
 *
 * All together take a part of the requests' memory at most, and give it back as soon as a request
 * needs it: the answer that was used longest ago leaves first. Its text stays while a later answer
 * refers to it. Only the client whose answer it was finds it. Any thread may call these functions.
 */
#ifndef SERVER_KEPT_H
#define SERVER_KEPT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server_memory.h"

typedef struct server_kept_answer {
    struct server_kept_answer *before; /* in its conversation; holds a reference; NULL: none */
    uint64_t client;
    uint64_t charged;
    size_t size;
    char *text; /* items with a comma between them */
    /* Under the lock. */
    unsigned references;
    char id[48];
    struct server_kept_answer *older, *newer; /* of those that are listed */
} server_kept_answer;

typedef struct server_kept {
    server_memory_account *memory; /* set at the start */
    uint64_t most;
    pthread_mutex_t lock;
    /* Under the lock. */
    server_kept_answer *oldest, *newest;
    uint64_t bytes; /* of all, also of those that are not listed */
} server_kept;

/* From then on, kept answers are dropped if a request lacks room. */
void server_kept_open(server_kept *kept, server_memory_account *memory);
void server_kept_free(server_kept *kept);

/* Begins an answer, which cannot be found yet. Takes over the reference to the one before it. NULL:
 * there is no room for it. */
server_kept_answer *server_kept_begin(server_kept *kept, uint64_t client,
                                      server_kept_answer *before, const char *items, size_t size);
/* Adds the output; from then on the answer is found by its id. False: there is no room for it. */
bool server_kept_finish(server_kept *kept, server_kept_answer *answer, const char *id,
                        const char *items, size_t size);
/* Finds an answer of this client. Returns a reference, for server_kept_release(), or NULL if there
 * is none. */
server_kept_answer *server_kept_find(server_kept *kept, uint64_t client, const char *id);
void server_kept_release(server_kept *kept, server_kept_answer **answer);
uint64_t server_kept_bytes(server_kept *kept);

#endif
