/* SPDX-License-Identifier: MIT */
/* Names that llama.cpp's commands have for options, so that its users can type what they know. A
 * name with the same meaning becomes the option of cli_option_table.c. A name for something that
 * the command always does is accepted. Any other name is an error that names the option to use
 * instead. */
#ifndef CLI_FOREIGN_NAMES_H
#define CLI_FOREIGN_NAMES_H

#include <stdbool.h>

typedef enum cli_foreign_kind {
    FOREIGN_IS,    /* another name of `option`, with the same value; `value`, if any, is put before
                    * it */
    FOREIGN_MEANS, /* `option` with this `value` (NULL: none) */
    FOREIGN_HOLDS, /* the command always does this; `text` says why */
    FOREIGN_NOT    /* refused; `text` names the remedy */
} cli_foreign_kind;

typedef struct cli_foreign_row {
    const char *names[3]; /* ended by NULL, if fewer */
    /* The values that the row applies to, with '|' between; "N..": whole numbers from N on; "*":
     * any; NULL: the name has no value. A name's rows are tried in their order; the last applies to
     * all other values. */
    const char *values;
    cli_foreign_kind kind;
    const char *option;
    const char *value;
    const char *text;
} cli_foreign_row;

/* Ended by a row without names. */
extern const cli_foreign_row cli_foreign_rows[];

/* Whether the name is one of llama.cpp's, and takes a value. */
bool cli_foreign_is_name(const char *name, bool *takes_value);
/* Finds the row for the name with this value (NULL: none was given); NULL: there is no row. */
const cli_foreign_row *cli_foreign_find(const char *name, const char *value);

#endif
