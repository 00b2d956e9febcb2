/* SPDX-License-Identifier: MIT */
/* Limits the memory that serving takes in addition to the engine. The engine's memory plan leaves
 * this much free (server_memory() in server.h). It has three parts:
 *
 * - connections: SERVER_CONNECTION_BYTES each, for a thread, the headers, and a short answer with
 * its events;
 *
 * - requests: bodies, the prompts and grammars of running answers, and long answers; all of this is
 * charged before it is allocated;
 *
 * - the workshop: what parsing one request or writing one answer takes at a time: JSON objects, the
 * template, tokens, grammars (server_workshop.h). */
#ifndef SERVER_MEMORY_H
#define SERVER_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/allowance.h>

#include "cli_buffer.h"
#include "server_error.h"

enum {
    SERVER_CONNECTION_BYTES = 96 << 10, /* 95 KiB were measured for a connection with a stream */
    SERVER_ANSWER_BYTES = 24 << 10,     /* part of SERVER_CONNECTION_BYTES: an answer's text and
                                         * events */
    SERVER_REFUSED_CONNECTIONS = 16,    /* connections beyond the limit, which get status 503 */
    SERVER_TEXT_COPIES = 6,             /* copies of a conversation's body while the request is
                                         * prepared */
    SERVER_ANSWER_COPIES = 14,          /* copies of a text while it is turned into JSON */
    SERVER_DEEPEST_JSON = 64,           /* deepest nesting that is accepted */
    SERVER_MOST_STEPS = 64000000,       /* steps for preparing one request: about a second */
};

typedef struct server_memory_account {
    uint64_t most;      /* bytes of all requests */
    size_t most_body;   /* bytes of one body */
    uint64_t most_work; /* bytes of the workshop */
    uint32_t most_connections;
    bool (*give_back)(void *giver); /* called if memory is short; returns false if it freed nothing;
                                     * may be NULL */
    void *giver;
    _Atomic uint64_t taken;
    _Atomic uint64_t peak;
} server_memory_account;

/* planned: how many bytes the engine's memory plan leaves free for serving; 0: unknown. */
void server_memory_open(server_memory_account *account, uint32_t parallel, uint64_t planned);
/* Adds bytes to the charge of a request. False: other requests occupy the memory (status 503), or
 * the request is too large even alone (413). */
bool server_memory_charge(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                          server_error *error);
void server_memory_release(server_memory_account *account, uint64_t *charged, uint64_t bytes);
/* Changes a request's charge to `bytes`: charges the difference, or releases it. */
bool server_memory_set(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                       server_error *error);
/* Appends to the buffer. If the buffer must grow, charges the growth first. `most` is the largest
 * size that the buffer may reach. */
bool server_memory_append(server_memory_account *account, uint64_t *charged, cli_buffer *buffer,
                          const void *bytes, size_t size, size_t most, server_error *error);

/* ---- In the workshop ---- */

/* Takes bytes from the workshop's memory until its task ends. Returns false and sets an error (413)
 * if they are not available. */
bool server_work_take(moe_allowance *allowance, uint64_t bytes, server_error *error);
/* Counts n steps of the task. Returns false and sets an error if the limit is exceeded. */
bool server_work_step(moe_allowance *allowance, uint64_t n, server_error *error);
/* Sets the error for a call that failed within the task's limits. field: the request's field that
 * the call was about. */
bool server_work_fail(server_error *error, int status, const char *field, const moe_error *err);
/* Returns an upper bound of the memory that json-c's objects take for this text, without the bytes
 * of strings. */
uint64_t server_json_bytes(const char *text, size_t size);

#endif
