/* SPDX-License-Identifier: MIT */
/* What goes to stderr while a command works: lines of progress, and the library's notes. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli_options.h"

/* Progress of something slow: one line rewritten in place, only on a terminal, only past the first
 * second. cli_progress_end() takes the line away. */
typedef struct cli_progress {
    cli_terminal *terminal;
    bool enabled;
    const char *label;
    uint64_t start_ns;
    uint64_t last_ns;
} cli_progress;

/* stderr. The engine's threads write notes to it for as long as an engine is open, while the main
 * thread writes progress, so there is one for the whole command: main() owns it. */
struct cli_terminal {
    pthread_mutex_t mutex;
    int shown;            /* columns of the line of progress that stands there; 0: none */
    cli_progress loading; /* of the engine that is being opened: main thread only */
};

#define CLI_TERMINAL_INIT                                                                          \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER                                                         \
    }

void cli_progress_start(cli_progress *progress, const cli_options *options, const char *label);
void cli_progress_show(cli_progress *progress, double fraction);
void cli_progress_end(cli_progress *progress);

/* One note on a line of its own; a line of progress makes room for it. Any thread. */
void cli_terminal_note(cli_terminal *terminal, const char *line);

#endif
