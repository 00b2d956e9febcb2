/* SPDX-License-Identifier: MIT */
/* Reads --workers and --worker-key. */
#ifndef CLI_WORKERS_H
#define CLI_WORKERS_H

#include <stddef.h>
#include <stdint.h>

#include "cli_options.h"

enum { CLI_MOST_WORKERS = 32, CLI_MOST_KEY_BYTES = 4096 };

typedef struct cli_workers {
    cli_text_list text;
    const char *list[CLI_MOST_WORKERS]; /* [n] "host:port" */
    size_t n;
    uint8_t key[CLI_MOST_KEY_BYTES]; /* [key_bytes] */
    size_t key_bytes;
} cli_workers;

/* Returns an exit code; errors have been printed. */
int cli_workers_read(cli_workers *workers, const cli_options *options);

#endif
