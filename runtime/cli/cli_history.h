/* SPDX-License-Identifier: MIT */
/* The messages of earlier conversations, for the arrow keys of the next one. They are kept in a
 * file, a message a line, in which "\n" stands for a line end and "\\" for a backslash. */
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

#include "cli_options.h"

typedef struct cli_history {
    char *path; /* NULL: nothing is kept */
    bool told;  /* an error has been printed */
    char **entries;
    size_t n_entries; /* of the file when it was opened, the oldest first */
} cli_history;

/* Reads --history FILE, or $XDG_STATE_HOME/moe-offload/history (~/.local/state without that
 * variable). If the file cannot be read, prints a note, and the conversation goes on without it. */
void cli_history_open(cli_history *history, const cli_options *options);

/* Adds a message to the file. Leaves out those that begin with a blank, and very long ones. */
void cli_history_keep(cli_history *history, const char *message);
bool cli_history_keeps(const char *message);

void cli_history_close(cli_history *history);

#endif
