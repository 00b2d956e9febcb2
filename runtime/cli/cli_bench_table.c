/* SPDX-License-Identifier: MIT */
#include "cli_bench_table.h"

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
    bool is_detail; /* not in the table */
} cell;

struct cli_bench_table {
    const char *bench;
    char title[600];
    cell *cells;
    size_t n_cells, capacity;
    size_t n_rows;
    size_t n_columns; /* of the first row */
    bool failed;
};

/* ---- Lists ---- */

/* Calls take for every part between commas. */
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
    snprintf(c->value, sizeof c->value, "%.*f", digits, value);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

void cli_bench_median(cli_bench_table *table, const char *name, int digits, const double *values,
                      size_t n)
{
    char detail[NAME_SIZE];
    double *sorted = malloc(n * sizeof *sorted);
    if (sorted == NULL) {
        table->failed = true;
        return;
    }
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    double median = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    cli_bench_real(table, name, digits, median);
    snprintf(detail, sizeof detail, "%s_min", name);
    cli_bench_real(table, detail, digits, sorted[0]);
    table->cells[table->n_cells - 1].is_detail = true;
    snprintf(detail, sizeof detail, "%s_max", name);
    cli_bench_real(table, detail, digits, sorted[n - 1]);
    table->cells[table->n_cells - 1].is_detail = true;
    free(sorted);
}

/* ---- Printing ---- */

static const cell *cell_at(const cli_bench_table *t, size_t row, size_t column)
{
    return &t->cells[row * t->n_columns + column];
}

/* Names stand above their columns in pieces: "tokens_per_s" is too wide for its numbers. */
static void print_table(const cli_bench_table *t)
{
    printf("%s\n\n", t->title);
    for (size_t k = 0; k < t->n_columns; k++) {
        if (!cell_at(t, 0, k)->is_detail) {
            printf("%s%s", k > 0 ? " | " : "", cell_at(t, 0, k)->name);
        }
    }
    putchar('\n');
    for (size_t r = 0; r < t->n_rows; r++) {
        for (size_t k = 0; k < t->n_columns; k++) {
            const cell *c = cell_at(t, r, k);
            if (!c->is_detail) {
                printf("%s%s", k > 0 ? " | " : "", c->value);
            }
        }
        putchar('\n');
    }
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
            fprintf(file, c->is_text ? "%s\"%s\"" : "%s%s", k > 0 ? "," : "", c->value);
        }
        fputc('\n', file);
    }
}

static int print_json(const cli_bench_table *t)
{
    struct json_object *object = json_object_new_object();
    struct json_object *rows = json_object_new_array();
    cli_json_text(object, "bench", t->bench);
    cli_json_text(object, "what", t->title);
    for (size_t r = 0; r < t->n_rows; r++) {
        struct json_object *row = json_object_new_object();
        for (size_t k = 0; k < t->n_columns; k++) {
            const cell *c = cell_at(t, r, k);
            if (c->is_text) {
                cli_json_text(row, c->name, c->value);
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
    size_t label = text_column(t);
    fprintf(plot,
            "set datafile separator ','\nset key outside\nset xlabel '%s' noenhanced\n"
            "set ylabel '%s' noenhanced\nplot ",
            x, y);
    bool first = true;
    for (size_t r = 0; r < t->n_rows && label < t->n_columns; r++) {
        if (is_first_of_its_text(t, r, label)) {
            const char *name = cell_at(t, r, label)->value;
            fprintf(plot,
                    "%s'%s.dat' skip 1 using (strcol(%zu) eq '%s' ? $%zu : 1/0):%zu "
                    "with linespoints title '%s' noenhanced",
                    first ? "" : ", \\\n", options->output, label + 1, name, column_of(t, x) + 1,
                    column_of(t, y) + 1, name);
            first = false;
        }
    }
    fputc('\n', plot);
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
        print_table(t);
        return CLI_EXIT_OK;
    }
}
