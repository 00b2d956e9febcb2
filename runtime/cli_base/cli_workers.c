/* SPDX-License-Identifier: MIT */
#include "cli_workers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli_copies.h"
#include "cli_fail.h"

static int read_key(cli_workers *w, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "--worker-key %s: %s", path, strerror(errno));
    }
    w->key_bytes = fread(w->key, 1, sizeof w->key, file);
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed || w->key_bytes < 16 || w->key_bytes == sizeof w->key) {
        return cli_fail(CLI_EXIT_FAILURE,
                        "--worker-key %s: a key has 16 to %d bytes; for example: head -c 32 "
                        "/dev/urandom >FILE",
                        path, CLI_MOST_KEY_BYTES - 1);
    }
    return CLI_EXIT_OK;
}

int cli_workers_read(cli_workers *w, const cli_options *options)
{
    w->text = options->workers;
    w->key_bytes = 0;
    int code = cli_names_read(&w->text, "--workers", "worker's address", "workers", w->list,
                              CLI_MOST_WORKERS, &w->n);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    return options->worker_key != NULL ? read_key(w, options->worker_key) : CLI_EXIT_OK;
}
