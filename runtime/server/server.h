/* SPDX-License-Identifier: MIT */
/* Serves an engine over HTTP. Nothing here prints, and the only files are those of the folder
 * for finished prompts: the caller opens the engine, reads the keys, and gets lines for its log. */
#ifndef SERVER_H
#define SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>

enum {
    SERVER_MOST_PARALLEL = 256,
    SERVER_MOST_WORKERS = 32,
    SERVER_MOST_KEYS = 256,
};

/* How the hidden states of a text's tokens are combined into an embedding. */
typedef enum server_pooling {
    SERVER_POOLING_MEAN,
    SERVER_POOLING_LAST,
    SERVER_POOLING_NONE /* none: /embedding answers with the vectors of all tokens */
} server_pooling;

typedef struct server_options {
    const char *host;               /* a name or an address */
    uint16_t port;                  /* 0: any that is free */
    const char *const *keys;        /* [n_keys]; each request must carry one of these keys */
    size_t n_keys;                  /* 0: no key is needed, which is allowed on a loopback address
                                     * only */
    uint32_t parallel;              /* most sessions, 1..SERVER_MOST_PARALLEL */
    const char *const *names;       /* [n_names] the model's names for clients */
    size_t n_names;                 /* at least 1 */
    const char *model;              /* the first name; answers contain it */
    bool strict_model;              /* a request may not name another model */
    bool strict_fields;             /* a request may not have unknown fields */
    const char *chat_template_name; /* NULL: the model's own */
    const char *chat_template_text; /* a template instead of a name; NULL: none */
    moe_switch thinking;
    server_pooling pooling;   /* of embeddings */
    const char *cache_folder; /* keeps finished prompts; NULL: none are kept */
    uint64_t cache_bytes;     /* the most bytes of all its files together */

    bool (*stopped)(void *user);               /* polled: true ends server_run() */
    void (*log)(const char *line, void *user); /* one line, called on any thread */
    void *user;
} server_options;

/* Returns how many bytes of RAM the server needs in addition to the engine: for the requests of
 * `parallel` sessions and for connections, whose number is limited. The caller passes this to the
 * engine as moe_engine_options.program_memory. budget: the engine's host_memory in bytes; 0 if it
 * is not set. */
uint64_t server_memory(uint32_t parallel, uint64_t budget);

/* Serves until options->stopped() is true, then finishes the answers that have begun. Until it
 * returns, only the server may make those calls on this engine that the library's headers mark `in
 * turn`. Returns 0, or -1 and one line that names the option. */
int server_run(moe_engine *engine, const server_options *options, char *error, size_t error_size);

#endif
