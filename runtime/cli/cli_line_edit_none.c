/* SPDX-License-Identifier: MIT */
/* A build without libedit. */
#include "cli_line_edit.h"

cli_line_edit *cli_line_edit_open(cli_history *history, const char *const *words)
{
    (void)history;
    (void)words;
    return NULL;
}

cli_line_result cli_line_edit_read(cli_line_edit *edit, char **line, size_t *size)
{
    (void)edit;
    (void)line;
    (void)size;
    return CLI_LINE_END;
}

void cli_line_edit_close(cli_line_edit **edit)
{
    (void)edit;
}
