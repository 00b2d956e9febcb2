/* SPDX-License-Identifier: MIT */
#include "cli_bench_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "cli_json.h"
#include "cli_trace.h"

#define NAME_SIZE  40
#define VALUE_SIZE 260

typedef struct cell {
    char name[NAME_SIZE];
    char value[VALUE_SIZE];
    bool is_text;
    bool is_detail; /* not in the table for people */
    bool is_absent; /* a number without a value */
} cell;

struct cli_bench_table {
    const char *bench;
    char title[600];
    struct json_object *about; /* the caller's, or NULL */
    cell *cells;
    size_t n_cells, capacity;
    size_t n_rows;
    size_t n_columns; /* columns of the first row */
    bool failed;
};

/* ---- Lists ---- */

/* Calls take() for every part between commas. */
static int each_part(const char *text, const char *option, size_t *n,
                     bool (*take)(const char *part, size_t index, void *user), void *user)
{
    const char *all = text;
    *n = 0;
    for (;;) {
        char part[64];
        size_t size = strcspn(text, ",");
        if (size == 0 || size >= sizeof part || *n == CLI_BENCH_PARTS) {
            return cli_fail(CLI_EXIT_USAGE, "bench: %s: 1 to %d values between commas, not '%s'",
                            option, CLI_BENCH_PARTS, all);
        }
        memcpy(part, text, size);
        part[size] = '\0';
        if (!take(part, (*n)++, user)) {
            return cli_fail(CLI_EXIT_USAGE, "bench: %s: '%s' is not a value", option, part);
        }
        if (text[size] == '\0') {
            return CLI_EXIT_OK;
        }
        text += size + 1;
    }
}

static bool take_share(const char *part, size_t index, void *user)
{
    char *end;
    double percent = strtod(part, &end);
    ((double *)user)[index] = percent / 100;
    return end != part && strcmp(end, "%") == 0 && percent > 0 && percent <= 100;
}

static bool take_count(const char *part, size_t index, void *user)
{
    char *end;
    unsigned long long count = strtoull(part, &end, 10);
    ((uint64_t *)user)[index] = count;
    return part[0] >= '0' && part[0] <= '9' && *end == '\0' && count >= 1 && count <= 1u << 20;
}

int cli_bench_shares(const char *text, const char *option, double *shares, size_t *n)
{
    return each_part(text, option, n, take_share, shares);
}

int cli_bench_counts(const char *text, const char *option, uint64_t *counts, size_t *n)
{
    return each_part(text, option, n, take_count, counts);
}

/* ---- Rows ---- */

cli_bench_table *cli_bench_table_create(const char *bench, const char *title)
{
    cli_bench_table *table = calloc(1, sizeof *table);
    if (table != NULL) {
        table->bench = bench;
        snprintf(table->title, sizeof table->title, "%s", title);
    }
    return table;
}

void cli_bench_table_free(cli_bench_table **table)
{
    if (*table != NULL) {
        free((*table)->cells);
        free(*table);
        *table = NULL;
    }
}

void cli_bench_begin_row(cli_bench_table *table)
{
    table->n_rows++;
}

static cell *add_cell(cli_bench_table *table, const char *name)
{
    static cell spare;
    if (table->n_cells == table->capacity) {
        size_t capacity = table->capacity > 0 ? 2 * table->capacity : 64;
        cell *bigger = realloc(table->cells, capacity * sizeof *bigger);
        if (bigger == NULL) {
            table->failed = true;
            return &spare;
        }
        table->cells = bigger;
        table->capacity = capacity;
    }
    table->n_columns += table->n_rows == 1;
    cell *c = &table->cells[table->n_cells++];
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

void cli_bench_text(cli_bench_table *table, const char *name, const char *value)
{
    cell *c = add_cell(table, name);
    snprintf(c->value, sizeof c->value, "%s", value);
    c->is_text = true;
}

void cli_bench_count(cli_bench_table *table, const char *name, uint64_t value)
{
    cell *c = add_cell(table, name);
    snprintf(c->value, sizeof c->value, "%llu", (unsigned long long)value);
}

void cli_bench_real(cli_bench_table *table, const char *name, int digits, double value)
{
    cell *c = add_cell(table, name);
    c->is_absent = isnan(value);
    if (!c->is_absent) {
        snprintf(c->value, sizeof c->value, "%.*f", digits, value);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *sorted, size_t n)
{
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void cli_bench_median(cli_bench_table *table, const char *name, int digits, const double *values,
                      size_t n)
{
    static const char *const suffixes[] = {"", "_min", "_max"};
    double *sorted = malloc((n + 1) * sizeof *sorted);
    if (sorted == NULL) {
        table->failed = true;
        return;
    }
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    for (int i = 0; i < 3; i++) {
        char full[NAME_SIZE];
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        cell *c = add_cell(table, full);
        c->is_detail = i > 0;
        c->is_absent = n == 0;
        if (n > 0) {
            double value = i == 0 ? median_of(sorted, n) : sorted[i == 1 ? 0 : n - 1];
            snprintf(c->value, sizeof c->value, "%.*f", digits, value);
        }
    }
    free(sorted);
}

void cli_bench_detail(cli_bench_table *table)
{
    for (size_t i = table->n_cells; i-- > 0;) {
        cell *c = &table->cells[i];
        bool was_detail = c->is_detail;
        c->is_detail = true;
        if (!was_detail) {
            break;
        }
    }
}

void cli_bench_table_about(cli_bench_table *table, struct json_object *about)
{
    table->about = about;
}

/* ---- Printing ---- */

static const cell *cell_at(const cli_bench_table *t, size_t row, size_t column)
{
    return &t->cells[row * t->n_columns + column];
}

static const char *shown(const cell *c)
{
    return c->is_absent ? "-" : c->value;
}

static void print_cell(const char *text, size_t width, bool is_text, bool is_first)
{
    printf(is_text ? "%s%-*s" : "%s%*s", is_first ? "" : "  ", (int)width, text);
}

/* Makes each column as wide as its widest value or name; texts to the left, numbers to the right.
 */
static void print_rows(const cli_bench_table *t, const size_t *widths)
{
    for (size_t line = 0; line <= t->n_rows; line++) {
        bool is_first = true;
        for (size_t k = 0; k < t->n_columns; k++) {
            const cell *c = cell_at(t, line > 0 ? line - 1 : 0, k);
            if (!c->is_detail) {
                print_cell(line == 0 ? c->name : shown(c), widths[k], c->is_text, is_first);
                is_first = false;
            }
        }
        putchar('\n');
    }
}

static int print_table(const cli_bench_table *t)
{
    size_t *widths = calloc(t->n_columns, sizeof *widths);
    if (widths == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "bench: out of memory for the results");
    }
    for (size_t i = 0; i < t->n_rows * t->n_columns; i++) {
        size_t value = strlen(shown(&t->cells[i]));
        size_t name = strlen(t->cells[i].name);
        size_t *width = &widths[i % t->n_columns];
        *width = value > *width ? value : *width;
        *width = name > *width ? name : *width;
    }
    if (t->about != NULL) {
        json_object_object_foreach(t->about, key, value)
        {
            printf("%-14s %s\n", key, json_object_get_string(value));
        }
    } else {
        puts(t->title);
    }
    putchar('\n');
    print_rows(t, widths);
    free(widths);
    return CLI_EXIT_OK;
}

static void print_quoted(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != '\0'; text++) {
        fprintf(file, *text == '"' ? "\"\"" : "%c", *text);
    }
    fputc('"', file);
}

static void print_csv(const cli_bench_table *t, FILE *file)
{
    for (size_t k = 0; k < t->n_columns; k++) {
        fprintf(file, "%s%s", k > 0 ? "," : "", cell_at(t, 0, k)->name);
    }
    fputc('\n', file);
    for (size_t r = 0; r < t->n_rows; r++) {
        for (size_t k = 0; k < t->n_columns; k++) {
            const cell *c = cell_at(t, r, k);
            fputs(k > 0 ? "," : "", file);
            if (c->is_text) {
                print_quoted(file, c->value);
            } else {
                fputs(c->value, file);
            }
        }
        fputc('\n', file);
    }
}

static int print_json(const cli_bench_table *t)
{
    struct json_object *object = json_object_new_object();
    struct json_object *rows = json_object_new_array();
    cli_json_text(object, "bench", t->bench);
    if (t->about != NULL) {
        json_object_object_foreach(t->about, key, value)
        {
            if (value != NULL) {
                cli_json_put(object, key, json_object_get(value));
            } else {
                cli_json_null(object, key);
            }
        }
    } else {
        cli_json_text(object, "what", t->title);
    }
    for (size_t r = 0; r < t->n_rows; r++) {
        struct json_object *row = json_object_new_object();
        for (size_t k = 0; k < t->n_columns; k++) {
            const cell *c = cell_at(t, r, k);
            if (c->is_text) {
                cli_json_text(row, c->name, c->value);
            } else if (c->is_absent) {
                cli_json_null(row, c->name);
            } else {
                cli_json_real(row, c->name, strtod(c->value, NULL));
            }
        }
        cli_json_append(rows, row);
    }
    cli_json_put(object, "rows", rows);
    return cli_json_print(object, stdout);
}

static size_t column_of(const cli_bench_table *t, const char *name)
{
    size_t k = 0;
    while (k < t->n_columns && strcmp(cell_at(t, 0, k)->name, name) != 0) {
        k++;
    }
    return k;
}

static size_t text_column(const cli_bench_table *t)
{
    size_t k = 0;
    while (k < t->n_columns && !cell_at(t, 0, k)->is_text) {
        k++;
    }
    return k;
}

static bool is_first_of_its_text(const cli_bench_table *t, size_t row, size_t column)
{
    for (size_t r = 0; r < row; r++) {
        if (strcmp(cell_at(t, r, column)->value, cell_at(t, row, column)->value) == 0) {
            return false;
        }
    }
    return true;
}

/* Plots a line for each text of the first column that has texts. */
static void plot_lines(const cli_bench_table *t, FILE *plot, const char *prefix, const char *x,
                       const char *y)
{
    size_t label = text_column(t);
    bool first = true;
    fprintf(plot, "set ylabel '%s' noenhanced\nplot ", y);
    for (size_t r = 0; r < t->n_rows && label < t->n_columns; r++) {
        if (is_first_of_its_text(t, r, label)) {
            const char *name = cell_at(t, r, label)->value;
            fprintf(plot,
                    "%s'%s.dat' skip 1 using (strcol(%zu) eq '%s' ? $%zu : 1/0):%zu "
                    "with linespoints title '%s' noenhanced",
                    first ? "" : ", \\\n", prefix, label + 1, name, column_of(t, x) + 1,
                    column_of(t, y) + 1, name);
            first = false;
        }
    }
    fputc('\n', plot);
}

static int write_gnuplot(const cli_bench_table *t, const cli_options *options, const char *x,
                         const char *y)
{
    FILE *data = cli_output_create(options, ".dat");
    if (data == NULL) {
        return CLI_EXIT_FAILURE;
    }
    print_csv(t, data);
    int code = cli_output_close(data, options, ".dat");
    FILE *plot = code == CLI_EXIT_OK ? cli_output_create(options, ".gp") : NULL;
    if (plot == NULL) {
        return CLI_EXIT_FAILURE;
    }
    fprintf(plot, "set datafile separator ','\nset key outside\nset xlabel '%s' noenhanced\n", x);
    size_t n = strcspn(y, ",");
    char name[64];
    if (y[n] != '\0') {
        fputs("set multiplot layout 2,1\n", plot);
        snprintf(name, sizeof name, "%.*s", (int)n, y);
        plot_lines(t, plot, options->output, x, name);
        y += n + 1;
    }
    plot_lines(t, plot, options->output, x, y);
    return cli_output_close(plot, options, ".gp");
}

int cli_bench_table_print(const cli_bench_table *t, const cli_options *options, unsigned format,
                          const char *x, const char *y)
{
    if (t->failed || t->n_rows == 0) {
        return cli_fail(CLI_EXIT_FAILURE, "bench: %s",
                        t->failed ? "out of memory for the results" : "nothing was measured");
    }
    switch (format) {
    case CLI_FORMAT_CSV:
        print_csv(t, stdout);
        return CLI_EXIT_OK;
    case CLI_FORMAT_JSON:
        return print_json(t);
    case CLI_FORMAT_GNUPLOT:
        return write_gnuplot(t, options, x, y);
    default:
        return print_table(t);
    }
}
