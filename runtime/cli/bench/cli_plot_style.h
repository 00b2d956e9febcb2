/* SPDX-License-Identifier: MIT */
/* How gnuplot's pictures look: colours that colour-blind readers tell apart, each with its own dash
 * and mark; axes in words with units; a white ground, for light and dark pages. */
#ifndef CLI_PLOT_STYLE_H
#define CLI_PLOT_STYLE_H

#include <stdio.h>

/* Sets gnuplot's line types, key and grid. */
void cli_plot_style(FILE *script);
/* A column's name in words, with its unit; itself if it has none. */
const char *cli_plot_words(const char *column);

#endif
