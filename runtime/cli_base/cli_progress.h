/* SPDX-License-Identifier: MIT */
/* Output of a working command to stderr: lines of progress, and the library's notes. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <moe/types.h>

#include "cli_options.h"

/* Progress of something slow: one line rewritten in place, only on a terminal, only after the first
 * second. cli_progress_end() removes the line. */
typedef struct cli_progress {
    cli_terminal *terminal;
    bool enabled;
    const char *label;
    uint64_t start_ns;
    uint64_t last_ns;
    struct cli_progress *outer; /* the progress that was shown before; NULL: none */
    double fraction;
    uint64_t n_rows; /* tokens that passes evaluate for the whole work; 0: passes are only a part of
                      * the work */
} cli_progress;

/* The state of stderr. The engine's threads write notes to it while an engine is open, and the main
 * thread writes progress. There is one for the whole command, and main() owns it. */
struct cli_terminal {
    pthread_mutex_t mutex;
    int shown;             /* columns of the current line of progress; 0: none */
    cli_progress loading;  /* progress of opening an engine: main thread only */
    cli_progress *working; /* the progress that is under way: main thread only; NULL: none */
};

#define CLI_TERMINAL_INIT                                                                          \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER                                                         \
    }

void cli_progress_start(cli_progress *progress, const cli_options *options, const char *label);
void cli_progress_show(cli_progress *progress, double fraction);
/* Shows the progress with words behind the bar. */
void cli_progress_show_words(cli_progress *progress, double fraction, const char *behind);
/* Shows the layers and bytes of a running pass, on the line of the work in progress, if there is
 * one. */
void cli_progress_pass(const moe_pass_progress *pass, void *terminal);
void cli_progress_end(cli_progress *progress);

/* Writes one note on a line of its own, after removing a line of progress. Any thread. */
void cli_terminal_note(cli_terminal *terminal, const char *line);

#endif
