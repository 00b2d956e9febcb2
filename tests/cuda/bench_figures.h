/* SPDX-License-Identifier: MIT */
/* The figures of bench_gpu: one line of a table each, and one line of JSON in a file. */
#ifndef MOE_TESTS_BENCH_FIGURES_H
#define MOE_TESTS_BENCH_FIGURES_H

#include <stdio.h>

typedef struct bench_figure {
    const char *subject; /* what is measured: "product" */
    const char *of;      /* which case of it: "Q4_K, 1 row" */
    double value;
    const char *unit;
    double bound; /* what the machine allows at best, of the same unit; 0: not known */
    const char *bound_of;
    double beside; /* another way to do the same, of the same unit; 0: there is none */
    const char *beside_of;
} bench_figure;

/* json: where the line of JSON goes, or NULL. Names must need no escapes. */
void bench_figure_put(FILE *json, const bench_figure *figure);

#endif
