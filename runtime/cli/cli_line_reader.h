/* SPDX-License-Identifier: MIT */
/* Reads the messages of a conversation. On a terminal they are edited with libedit, if the command
 * was built with it; elsewhere they are read as lines. */
#ifndef CLI_LINE_READER_H
#define CLI_LINE_READER_H

#include <stdbool.h>

#include "cli_history.h"
#include "cli_line_edit.h"
#include "cli_options.h"

typedef struct cli_line_reader {
    cli_history history;
    cli_line_edit *edit; /* NULL: lines are not edited */
    char *line;
    size_t size;
} cli_line_reader;

/* words: the words that Tab completes at a line's beginning, ended by NULL. The array must outlive
 * the reader. */
void cli_line_reader_open(cli_line_reader *reader, const cli_options *options,
                          const char *const *words);

/* Prompts and reads. *line is valid until the next call. It has no line end behind it, but may have
 * some within if several lines were pasted. */
cli_line_result cli_line_read(cli_line_reader *reader, const char **line);
void cli_line_reader_close(cli_line_reader *reader);

#endif
