/* SPDX-License-Identifier: MIT */
#include "cli_sweep_plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_plot_style.h"
#include "cli_program.h"
#include "cli_sweep.h"
#include "cli_trace.h"

struct cli_sweep_point {
    char curve[CLI_SWEEP_TEXT];
    char x[CLI_SWEEP_TEXT];
    double median, least, greatest;
};

static const struct {
    const char *suffix;
    const char *terminal;
} terminals[] = {
    {".svg", "svg size 900,500 dynamic background '#ffffff'"},
    {".png", "png size 900,500"},
    {".pdf", "pdf"},
};

static const char *terminal_of(const char *path)
{
    size_t size = strlen(path);
    for (size_t i = 0; i < sizeof terminals / sizeof terminals[0]; i++) {
        if (size > 4 && strcmp(path + size - 4, terminals[i].suffix) == 0) {
            return terminals[i].terminal;
        }
    }
    return NULL;
}

int cli_sweep_plot_check(const cli_options *options)
{
    static const char *const version[] = {"gnuplot", "--version", NULL};
    if (options->plot == NULL) {
        return CLI_EXIT_OK;
    }
    if (terminal_of(options->plot) == NULL || strpbrk(options->plot, "'\n") != NULL) {
        return cli_fail(CLI_EXIT_USAGE, "--plot must be FILE.svg, FILE.png or FILE.pdf, not '%s'",
                        options->plot);
    }
    return cli_program_run(version, NULL, NULL, NULL) == 0
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE,
                          "--plot: gnuplot is not installed; --format gnuplot -o PREFIX writes "
                          "its script and data for later");
}

int cli_sweep_plot_begin(cli_sweep_plot *p)
{
    p->points = NULL;
    p->n = 0;
    p->capacity = 0;
    return CLI_EXIT_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

int cli_sweep_plot_point(cli_sweep_plot *p, const char *curve, const char *x, double *numbers,
                         size_t n)
{
    if (n == 0) {
        return CLI_EXIT_OK;
    }
    if (p->n == p->capacity) {
        size_t capacity = p->capacity > 0 ? 2 * p->capacity : 32;
        cli_sweep_point *bigger = realloc(p->points, capacity * sizeof *bigger);
        if (bigger == NULL) {
            return cli_fail(CLI_EXIT_FAILURE, "out of memory for the plot");
        }
        p->points = bigger;
        p->capacity = capacity;
    }
    qsort(numbers, n, sizeof *numbers, compare);
    cli_sweep_point *point = &p->points[p->n++];
    snprintf(point->curve, sizeof point->curve, "%s", curve);
    snprintf(point->x, sizeof point->x, "%s", x);
    point->median = n % 2 == 1 ? numbers[n / 2] : (numbers[n / 2 - 1] + numbers[n / 2]) / 2;
    point->least = numbers[0];
    point->greatest = numbers[n - 1];
    return CLI_EXIT_OK;
}

static bool begins_curve(const cli_sweep_plot *p, size_t at)
{
    size_t i = 0;
    while (strcmp(p->points[i].curve, p->points[at].curve) != 0) {
        i++;
    }
    return i == at;
}

static bool has_numbers(const cli_sweep_plot *p)
{
    size_t i = 0;
    while (i < p->n && isfinite(cli_number_of(p->points[i].x))) {
        i++;
    }
    return i == p->n;
}

/* Writes a block of data for each curve. The script finds it by its index. */
static void write_data(const cli_sweep_plot *p, FILE *file)
{
    bool numbers = has_numbers(p);
    for (size_t c = 0; c < p->n; c++) {
        if (!begins_curve(p, c)) {
            continue;
        }
        fprintf(file, "# %s: %s, %s (median, least, greatest)\n", p->points[c].curve, p->x, p->y);
        for (size_t i = c; i < p->n; i++) {
            const cli_sweep_point *point = &p->points[i];
            if (strcmp(point->curve, p->points[c].curve) == 0) {
                if (numbers) {
                    fprintf(file, "%.10g", cli_number_of(point->x));
                } else {
                    fprintf(file, "\"%s\"", point->x);
                }
                fprintf(file, " %.6g %.6g %.6g\n", point->median, point->least, point->greatest);
            }
        }
        fprintf(file, "\n\n");
    }
}

/* data: the name of a file in quotes, or of a data block. */
static void write_script(const cli_sweep_plot *p, FILE *file, const char *data)
{
    bool numbers = has_numbers(p);
    bool is_bytes = strcmp(p->x, "block") == 0;
    cli_plot_style(file);
    fprintf(file,
            "set title '%s, medians with least and greatest' noenhanced\n"
            "set xlabel '%s' noenhanced\nset ylabel '%s' noenhanced\nset yrange [0:*]\n%s%splot ",
            p->title, cli_plot_words(p->x), cli_plot_words(p->y),
            numbers ? "" : "set offsets 0.2, 0.2, 0, 0\n",
            numbers && is_bytes ? "set logscale x 2\n" : "");
    size_t index = 0;
    for (size_t c = 0; c < p->n; c++) {
        if (begins_curve(p, c)) {
            fprintf(file, "%s%s index %zu using %s with yerrorlines title '%s' noenhanced",
                    index == 0 ? "" : ", \\\n", data, index,
                    numbers ? "1:2:3:4" : "0:2:3:4:xtic(1)", p->points[c].curve);
            index++;
        }
    }
    fputc('\n', file);
}

static int write_files(const cli_sweep_plot *p)
{
    char name[4200];
    FILE *data = cli_output_create(p->options, ".dat");
    if (data == NULL) {
        return CLI_EXIT_FAILURE;
    }
    write_data(p, data);
    int code = cli_output_close(data, p->options, ".dat");
    FILE *script = code == CLI_EXIT_OK ? cli_output_create(p->options, ".gp") : NULL;
    if (script == NULL) {
        return CLI_EXIT_FAILURE;
    }
    snprintf(name, sizeof name, "'%s.dat'", p->options->output);
    write_script(p, script, name);
    return cli_output_close(script, p->options, ".gp");
}

static int draw(const cli_sweep_plot *p)
{
    static const char *const argv[] = {"gnuplot", NULL};
    cli_buffer script = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (file == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory for the plot");
    }
    fprintf(file, "set terminal %s\nset output '%s'\n$data << END_OF_DATA\n",
            terminal_of(p->options->plot), p->options->plot);
    write_data(p, file);
    fprintf(file, "END_OF_DATA\n");
    write_script(p, file, "$data");
    bool ok = fclose(file) == 0 && cli_buffer_append(&script, text, size) &&
              cli_program_run(argv, NULL, &script, NULL) == 0;
    free(text);
    cli_buffer_free(&script);
    return ok ? CLI_EXIT_OK
              : cli_fail(CLI_EXIT_FAILURE, "%s: gnuplot could not draw it", p->options->plot);
}

int cli_sweep_plot_end(cli_sweep_plot *p, int code)
{
    if (code == CLI_EXIT_OK && p->n == 0) {
        code = cli_fail(CLI_EXIT_FAILURE, "nothing was measured that could be drawn");
    }
    if (code == CLI_EXIT_OK && p->options->output != NULL) {
        code = write_files(p);
    }
    if (code == CLI_EXIT_OK && p->options->plot != NULL) {
        code = draw(p);
    }
    free(p->points);
    p->points = NULL;
    return code;
}
