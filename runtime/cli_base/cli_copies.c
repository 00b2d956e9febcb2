/* SPDX-License-Identifier: MIT */
#include "cli_copies.h"

#include <string.h>

#include "cli_fail.h"

int cli_names_read(cli_text_list *text, const char *option, const char *what, const char *many,
                   const char **list, size_t most, size_t *n)
{
    *n = 0;
    char *next = text->text[0] != '\0' ? text->text : NULL;
    while (next != NULL) {
        char *name = next;
        char *end = strchr(name, ',');
        next = end != NULL ? end + 1 : NULL;
        if (end != NULL) {
            *end = '\0';
        }
        if (*name == '\0') {
            return cli_fail(CLI_EXIT_USAGE, "%s: a %s is empty (a comma separates names)", option,
                            what);
        }
        if (*n == most) {
            return cli_fail(CLI_EXIT_USAGE, "%s: more than %zu %s", option, most, many);
        }
        list[(*n)++] = name;
    }
    return CLI_EXIT_OK;
}

int cli_copies_read(cli_copies *copies, const cli_text_list *given)
{
    copies->text = *given;
    return cli_names_read(&copies->text, "--model-copy", "file's name", "copies", copies->list,
                          CLI_MOST_COPIES, &copies->n);
}
