/* SPDX-License-Identifier: MIT */
/* The memory that serving takes beside the engine. The engine's plan keeps it free (server_memory()
 * of server.h); here is what holds requests to it:
 *
 *   connections  SERVER_CONNECTION_BYTES each: a thread, the headers, the answer's text and events
 *   requests     the rest: bodies, their JSON, prompts as text and tokens. Each request is charged
 *                a bound of what it takes before it takes it. */
#ifndef SERVER_MEMORY_H
#define SERVER_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server_error.h"

enum {
    SERVER_CONNECTION_BYTES = 96 << 10, /* 95 KiB were measured, with a stream each */
    SERVER_REFUSED_CONNECTIONS = 16,    /* beyond the limit, which are told so */
    SERVER_DEEPEST_JSON = 64,           /* nesting that is read */
    SERVER_BODY_COPIES = 4, /* a body: as it came, its JSON's strings, its prompt, its tokens */
};

typedef struct server_memory_account {
    uint64_t most;    /* bytes of all requests */
    size_t most_body; /* bytes of one body */
    uint32_t most_connections;
    _Atomic uint64_t taken;
    _Atomic uint32_t connections; /* open ones, refused ones among them */
} server_memory_account;

/* planned: what the engine's plan keeps free; 0: nothing is known of one. */
void server_memory_open(server_memory_account *account, uint32_t parallel, uint64_t planned);
/* Adds to what a request is charged. False: there is no room beside the others (503), or there
 * would be none without them (413). */
bool server_memory_charge(server_memory_account *account, uint64_t *charged, uint64_t bytes,
                          server_error *error);
void server_memory_release(server_memory_account *account, uint64_t *charged, uint64_t bytes);
/* The most that json-c's objects take for this text, without its strings' bytes. */
uint64_t server_json_bytes(const char *text, size_t size);

#endif
