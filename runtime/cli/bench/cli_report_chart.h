/* SPDX-License-Identifier: MIT */
/* A chart as inline SVG. Its colours come from the page's style sheet, for light and dark; curves
 * also differ in their dashes and marks, so that no reader depends on colours. */
#ifndef CLI_REPORT_CHART_H
#define CLI_REPORT_CHART_H

#include <stdbool.h>
#include <stdio.h>

enum { CLI_CHART_CURVES = 6, CLI_CHART_POINTS = 32 };

typedef struct cli_chart_curve {
    const char *name;
    size_t n;
    double x[CLI_CHART_POINTS], y[CLI_CHART_POINTS];
    double low[CLI_CHART_POINTS], high[CLI_CHART_POINTS]; /* limits of the band, if there is one */
    bool has_band;
    bool dots; /* only dots, without a line */
    bool flat; /* a horizontal line across the chart at y[0] */
} cli_chart_curve;

typedef struct cli_chart {
    const char *title, *x_label, *y_label; /* labels in words, with units */
    bool log_x;
    double y_most; /* 0: chosen by the curves */
    double mark_x; /* a vertical line, with this name; NULL: none */
    const char *mark;
    size_t n_curves;
    cli_chart_curve curves[CLI_CHART_CURVES];
} cli_chart;

/* A figure with title and legend. */
void cli_chart_write(const cli_chart *chart, FILE *page);

/* Text as HTML. */
void cli_chart_text(FILE *page, const char *text);

#endif
