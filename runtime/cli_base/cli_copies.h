/* SPDX-License-Identifier: MIT */
/* Reads --model-copy: files with commas between. */
#ifndef CLI_COPIES_H
#define CLI_COPIES_H

#include <stddef.h>

#include "cli_options.h"

enum { CLI_MOST_COPIES = 7 };

typedef struct cli_copies {
    cli_text_list text; /* cut at its commas */
    const char *list[CLI_MOST_COPIES];
    size_t n;
} cli_copies;

/* Reads the option. The list points into *copies, which must not move afterwards. */
int cli_copies_read(cli_copies *copies, const cli_text_list *given);

/* Cuts names with commas between, which stay in `text`: list [most], *n of them. what, many:
 * one of them and several, in words, for errors. Returns an exit code; errors have been printed. */
int cli_names_read(cli_text_list *text, const char *option, const char *what, const char *many,
                   const char **list, size_t most, size_t *n);

#endif
