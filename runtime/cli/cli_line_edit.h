/* SPDX-License-Identifier: MIT */
/* Editing a message on a terminal. */
#ifndef CLI_LINE_EDIT_H
#define CLI_LINE_EDIT_H

#include <stddef.h>

#include "cli_history.h"

typedef struct cli_line_edit cli_line_edit;

typedef enum cli_line_result {
    CLI_LINE_READ,
    CLI_LINE_END, /* end of input: Ctrl-D */
    /* The user wants to leave: by Ctrl-C, or where lines are edited by Ctrl-C twice in a row; or
     * the command got SIGTERM or SIGHUP. */
    CLI_LINE_INTERRUPTED,
    CLI_LINE_REFUSED /* no line; a message has been printed, and the next line may be read */
} cli_line_result;

/* words: completed by the tabulator key; ends with NULL. Returns NULL if lines cannot be edited
 * here, because the command was built without libedit, or libedit cannot handle the terminal. */
cli_line_edit *cli_line_edit_open(cli_history *history, const char *const *words);

/* Reads a line; *line grows as in getline(). */
cli_line_result cli_line_edit_read(cli_line_edit *edit, char **line, size_t *size);
void cli_line_edit_close(cli_line_edit **edit);

#endif
