/* SPDX-License-Identifier: MIT */
#include "cli_copies.h"

#include <string.h>

#include "cli_fail.h"

int cli_copies_read(cli_copies *copies, const cli_text_list *given)
{
    copies->text = *given;
    copies->n = 0;
    char *next = given->text[0] != '\0' ? copies->text.text : NULL;
    while (next != NULL) {
        char *path = next;
        char *end = strchr(path, ',');
        next = end != NULL ? end + 1 : NULL;
        if (end != NULL) {
            *end = '\0';
        }
        if (*path == '\0') {
            return cli_fail(CLI_EXIT_USAGE,
                            "--model-copy: a file's name is empty (a comma separates names)");
        }
        if (copies->n == CLI_MOST_COPIES) {
            return cli_fail(CLI_EXIT_USAGE, "--model-copy: more than %d copies", CLI_MOST_COPIES);
        }
        copies->list[copies->n++] = path;
    }
    return CLI_EXIT_OK;
}
