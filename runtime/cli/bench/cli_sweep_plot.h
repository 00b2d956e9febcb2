/* SPDX-License-Identifier: MIT */
/* Draws a sweep with gnuplot: medians with their least and greatest, and a curve for each
 * combination of the other axes. --format gnuplot -o PREFIX writes the script and its data; --plot
 * FILE.svg runs gnuplot at once. */
#ifndef CLI_SWEEP_PLOT_H
#define CLI_SWEEP_PLOT_H

#include <stddef.h>

#include "cli_options.h"

typedef struct cli_sweep_point cli_sweep_point;

typedef struct cli_sweep_plot {
    const cli_options *options;
    const char *title; /* without a single quote */
    const char *x, *y; /* names of columns */
    cli_sweep_point *points;
    size_t n, capacity;
} cli_sweep_plot;

/* Checks, before anything is measured, that --plot can work. Returns an exit code. */
int cli_sweep_plot_check(const cli_options *options);

int cli_sweep_plot_begin(cli_sweep_plot *p);
/* numbers: [n], sorted here; n = 0: no such point. Returns an exit code. */
int cli_sweep_plot_point(cli_sweep_plot *p, const char *curve, const char *x, double *numbers,
                         size_t n);
/* Writes and draws, unless code is an error, which it returns. Frees the points. */
int cli_sweep_plot_end(cli_sweep_plot *p, int code);

#endif
