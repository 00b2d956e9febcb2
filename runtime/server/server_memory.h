/* SPDX-License-Identifier: MIT */
/* The memory that serving takes beside the engine. The engine's plan keeps it free (server_memory()
 * of server.h); here is what holds requests to it:
 *
 *   connections  SERVER_CONNECTION_BYTES each: a thread, the headers, a short answer and its events
 *   requests     bodies as they come, prompts and grammars of answers that are written, answers
 *                that are long. Each is charged before it is taken.
 *   the workshop what one request at a time takes while it is taken apart, or its answer put
 *                together: JSON's objects, the template, tokens, grammars (server_workshop.h) */
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
    SERVER_CONNECTION_BYTES = 96 << 10, /* 95 KiB were measured, with a stream each */
    SERVER_ANSWER_BYTES = 24 << 10,     /* of them an answer's text and events */
    SERVER_REFUSED_CONNECTIONS = 16,    /* beyond the limit, which are told so */
    SERVER_TEXT_COPIES = 6,             /* of a conversation's body, while it is taken apart */
    SERVER_ANSWER_COPIES = 14,          /* of a text, while it becomes JSON */
    SERVER_DEEPEST_JSON = 64,           /* nesting that is read */
    SERVER_MOST_STEPS = 64000000,       /* of taking one request apart: a second, about */
};

typedef struct server_memory_account {
    uint64_t most;      /* bytes of all requests */
    size_t most_body;   /* bytes of one body */
    uint64_t most_work; /* bytes of the workshop */
    uint32_t most_connections;
    bool (*give_back)(void *giver); /* asked where room lacks; false: nothing is left; or NULL */
    void *giver;
    _Atomic uint64_t taken;
    _Atomic uint64_t peak;
} server_memory_account;

/* planned: what the engine's plan keeps free; 0: nothing is known of one. */
void server_memory_open(server_memory_account *account, uint32_t parallel, uint64_t planned);
/* Adds to what a request is charged. False: there is no room while the other requests are there
 * (503), or there would be none without them either (413). */
bool server_memory_charge(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                          server_error *error);
void server_memory_release(server_memory_account *account, uint64_t *charged, uint64_t bytes);
/* Charges more, or releases some, so that *charged becomes `bytes`. */
bool server_memory_set(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                       server_error *error);
/* Appends to the buffer. If the buffer must grow, charges the growth first. most: a size that the
 * buffer will never exceed. */
bool server_memory_append(server_memory_account *account, uint64_t *charged, cli_buffer *buffer,
                          const void *bytes, size_t size, size_t most, server_error *error);

/* ---- In the workshop ---- */

/* Takes bytes of the workshop's memory until its task ends; false, with an error (413). */
bool server_work_take(moe_allowance *allowance, uint64_t bytes, server_error *error);
/* Counts steps; false, with an error. */
bool server_work_step(moe_allowance *allowance, uint64_t n, server_error *error);
/* The error of a call within an allowance; field: what the error is of. */
bool server_work_fail(server_error *error, int status, const char *field, const moe_error *err);
/* The most that json-c's objects take for this text, without its strings' bytes. */
uint64_t server_json_bytes(const char *text, size_t size);

#endif
