/* SPDX-License-Identifier: MIT */
/* Finds the word that a mistyped word was probably meant to be. */
#ifndef CLI_NEAREST_H
#define CLI_NEAREST_H

#include <stddef.h>

/* The candidate that is nearest to the mistyped word so far; begin with {.typed = word}. */
typedef struct cli_nearest {
    const char *typed;
    const char *word; /* NULL: none is near enough */
    size_t distance;
} cli_nearest;

/* Considers a candidate. Near are words that begin with the typed word or differ from it in few
 * letters. */
void cli_nearest_try(cli_nearest *nearest, const char *candidate);

#endif
