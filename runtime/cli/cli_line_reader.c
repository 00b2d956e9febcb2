/* SPDX-License-Identifier: MIT */
#include "cli_line_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli_interrupt.h"
#include "cli_line_edit.h"

/* A terminal that edits lines by itself passes on this many bytes, the line end included. */
enum { TERMINAL_LINE = 4096 };

/* Whether to edit: escape sequences would be garbage in a file or on a terminal that does not know
 * them. */
static bool can_edit(void)
{
    const char *term = getenv("TERM");
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term != NULL && term[0] != '\0' &&
           strcmp(term, "dumb") != 0;
}

void cli_line_reader_open(cli_line_reader *reader, const cli_options *options,
                          const char *const *words)
{
    memset(reader, 0, sizeof *reader);
    if (can_edit()) {
        cli_history_open(&reader->history, options);
        reader->edit = cli_line_edit_open(&reader->history, words);
    }
}

static cli_line_result read_plain(cli_line_reader *reader)
{
    bool prompts = isatty(STDIN_FILENO);
    fputs(prompts ? "> " : "", stdout);
    fflush(stdout);
    ssize_t length = getline(&reader->line, &reader->size, stdin);
    if (length < 0) {
        fputs(prompts ? "\n" : "", stdout);
        return cli_interrupted() ? CLI_LINE_INTERRUPTED : CLI_LINE_END;
    }
    if (length >= TERMINAL_LINE && prompts) {
        cli_fail(CLI_EXIT_USAGE,
                 "the terminal cuts lines of more than %d bytes here, so this one is not sent: "
                 "give it with -f FILE",
                 TERMINAL_LINE - 1);
        return CLI_LINE_REFUSED;
    }
    reader->line[strcspn(reader->line, "\n")] = '\0';
    return CLI_LINE_READ;
}

cli_line_result cli_line_read(cli_line_reader *reader, const char **line)
{
    cli_line_result result = reader->edit != NULL
                                 ? cli_line_edit_read(reader->edit, &reader->line, &reader->size)
                                 : read_plain(reader);
    *line = result == CLI_LINE_READ ? reader->line : "";
    return result;
}

void cli_line_reader_close(cli_line_reader *reader)
{
    cli_line_edit_close(&reader->edit);
    cli_history_close(&reader->history);
    free(reader->line);
    reader->line = NULL;
}
