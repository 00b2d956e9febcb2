/* SPDX-License-Identifier: MIT */
/* --override-kv: "KEY=TYPE:VALUE", several with commas between; TYPE is int, float, bool or str. */
#ifndef CLI_OVERRIDES_H
#define CLI_OVERRIDES_H

#include <moe/moe.h>

#include "cli_options.h"

/* The most overrides that fit into the option's text: each has at least 6 characters and a
 * comma. */
#define CLI_MOST_OVERRIDES (sizeof(cli_text_list) / 7 + 1)

/* Must not move: keys and texts of the list point into `text`. */
typedef struct cli_overrides {
    cli_text_list text;
    moe_metadata_override list[CLI_MOST_OVERRIDES];
    size_t n;
} cli_overrides;

/* Reads the option's text. Returns an exit code; errors have been printed. */
int cli_overrides_read(cli_overrides *overrides, const cli_text_list *given);

#endif
