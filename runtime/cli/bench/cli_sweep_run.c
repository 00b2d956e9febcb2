/* SPDX-License-Identifier: MIT */
#include "cli_sweep.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/machine.h>
#include <moe/model_file.h>
#include <moe/moe.h>

#include "cli_bench_log.h"
#include "cli_bench_table.h"
#include "cli_engine.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_sweep_plot.h"
#include "cli_trace.h"

#define REPETITION_SIZE 24

/* ---- Axes ---- */

int cli_sweep_add_axis(cli_sweep *s, const cli_axis *axis, const char *list, const char *standard)
{
    cli_axis *a = &s->axes[s->n_axes++];
    *a = *axis;
    for (const char *at = list != NULL ? list : standard;; at++) {
        size_t size = strcspn(at, ",");
        if (size == 0 || size >= CLI_SWEEP_TEXT || a->n == CLI_SWEEP_PARTS) {
            return cli_fail(CLI_EXIT_USAGE, "bench %s: %s: 1 to %d values between commas", s->bench,
                            a->option, CLI_SWEEP_PARTS);
        }
        memcpy(a->values[a->n], at, size);
        a->values[a->n][size] = '\0';
        for (size_t i = 0; i < a->n; i++) {
            if (strcmp(a->values[i], a->values[a->n]) == 0) {
                return cli_fail(CLI_EXIT_USAGE, "bench %s: %s: '%s' stands there twice", s->bench,
                                a->option, a->values[i]);
            }
        }
        if (a->is_valid != NULL && !a->is_valid(a->values[a->n])) {
            return cli_fail(CLI_EXIT_USAGE, "bench %s: %s wants %s, not '%s'", s->bench, a->option,
                            a->wants, a->values[a->n]);
        }
        a->n++;
        at += size;
        if (*at == '\0') {
            return CLI_EXIT_OK;
        }
    }
}

static size_t n_combinations(const cli_sweep *s)
{
    size_t n = 1;
    for (size_t a = 0; a < s->n_axes; a++) {
        n *= s->axes[a].n;
    }
    return n;
}

/* The last axis changes fastest. */
static void choose(const cli_sweep *s, size_t index, const char **values)
{
    for (size_t a = s->n_axes; a-- > 0;) {
        values[a] = s->axes[a].values[index % s->axes[a].n];
        index /= s->axes[a].n;
    }
}

/* ---- What rows have in common ---- */

static const char *text_at(struct json_object *object, const char *group, const char *key)
{
    struct json_object *inner = NULL;
    struct json_object *value = NULL;
    bool found = object != NULL && json_object_object_get_ex(object, group, &inner) &&
                 json_object_object_get_ex(inner, key, &value) && value != NULL;
    return found ? json_object_get_string(value) : "not known";
}

int cli_sweep_identify(cli_sweep *s, const char *path, bool is_model)
{
    char *json = NULL;
    char text[512];
    moe_error err = {""};
    int status = moe_machine_describe(path, &json, &err);
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    struct json_object *machine = json_tokener_parse(json);
    moe_free(json);
    s->identity = json_object_new_object();
    cli_json_text(s->identity, "bench", s->bench);
    cli_json_text(s->identity, "library", moe_version());
    snprintf(text, sizeof text, "%s, %s cores, %s", text_at(machine, "cpu", "model"),
             text_at(machine, "cpu", "usable_cores"), text_at(machine, "system", "kernel"));
    cli_json_text(s->identity, "machine", text);
    snprintf(text, sizeof text, "%s on %s, read-ahead %s KiB",
             text_at(machine, "storage", "file_system"), text_at(machine, "storage", "device"),
             text_at(machine, "storage", "read_ahead_kb"));
    cli_json_text(s->identity, "storage", text);
    cli_json_text(s->identity, is_model ? "model" : "file", path);
    json_object_put(machine);
    if (is_model) {
        moe_file *file = NULL;
        uint64_t fingerprint = 0;
        status = moe_file_open(&file, path, &err);
        status = status == MOE_OK ? moe_file_fingerprint(file, &fingerprint, &err) : status;
        moe_file_close(&file);
        snprintf(text, sizeof text, "%016" PRIx64, fingerprint);
        cli_json_text(s->identity, "fingerprint", text);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* ---- Running ---- */

static void keys_of(const cli_sweep *s, const char *const *values, char *repetition, size_t r,
                    const char **keys)
{
    memcpy(keys, values, s->n_axes * sizeof *keys);
    snprintf(repetition, REPETITION_SIZE, "%zu", r);
    keys[s->n_axes] = repetition;
}

const char *cli_sweep_find(const cli_sweep *s, const char *const *values, size_t repetition,
                           const char *measure)
{
    char number[REPETITION_SIZE];
    const char *keys[CLI_SWEEP_AXES + 1];
    keys_of(s, values, number, repetition, keys);
    const char *const *row = cli_bench_log_find(s->log, keys);
    for (size_t m = 0; row != NULL && m < s->n_measures; m++) {
        if (strcmp(s->measures[m].name, measure) == 0) {
            return row[s->n_axes + 1 + m];
        }
    }
    return NULL;
}

static int check_same(const cli_sweep *s, const char *const *values, size_t repetition)
{
    const char *first[CLI_SWEEP_AXES];
    choose(s, 0, first);
    const char *expected = cli_sweep_find(s, first, 0, s->same);
    const char *got = cli_sweep_find(s, values, repetition, s->same);
    if (expected == NULL || got == NULL || strcmp(expected, got) == 0) {
        return CLI_EXIT_OK;
    }
    char text[512] = "";
    for (size_t a = 0; a < s->n_axes; a++) {
        size_t size = strlen(text);
        snprintf(text + size, sizeof text - size, "%s%s %s", a > 0 ? ", " : "", s->axes[a].name,
                 values[a]);
    }
    return cli_fail(CLI_EXIT_FAILURE, "bench %s: %s of %s is %s, of the first run %s", s->bench,
                    s->same, text, got, expected);
}

static int measure(cli_sweep *s, const char *const *values, size_t repetition)
{
    char number[REPETITION_SIZE];
    const char *cells[CLI_SWEEP_AXES + 1 + CLI_SWEEP_PARTS];
    cli_measured *results = calloc(s->n_measures, sizeof *results);
    keys_of(s, values, number, repetition, cells);
    int code = results != NULL ? s->run(s, values, repetition, results)
                               : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    for (size_t m = 0; m < s->n_measures && code == CLI_EXIT_OK; m++) {
        if (s->measures[m].digits != CLI_MEASURE_TEXT && isfinite(results[m].number)) {
            snprintf(results[m].text, CLI_SWEEP_TEXT, "%.*f", s->measures[m].digits,
                     results[m].number);
        }
        cells[s->n_axes + 1 + m] = results[m].text;
    }
    code = code == CLI_EXIT_OK ? cli_bench_log_append(s->log, cells) : code;
    free(results);
    return code;
}

static int run_all(cli_sweep *s)
{
    size_t n = n_combinations(s);
    size_t n_found = 0;
    int code = CLI_EXIT_OK;
    cli_progress progress;
    cli_progress_start(&progress, s->options, "measuring");
    for (size_t i = 0; i < n * s->options->bench_repeat && code == CLI_EXIT_OK; i++) {
        const char *values[CLI_SWEEP_AXES];
        const char *keys[CLI_SWEEP_AXES + 1];
        char number[REPETITION_SIZE];
        /* Alternates the direction, so that no combination always runs after the same one. */
        choose(s, i / n % 2 == 0 ? i % n : n - 1 - i % n, values);
        keys_of(s, values, number, i / n, keys);
        if (cli_bench_log_find(s->log, keys) != NULL) {
            n_found++;
        } else {
            cli_progress_show(&progress, (double)i / (double)(n * s->options->bench_repeat));
            code = measure(s, values, i / n);
        }
        if (code == CLI_EXIT_OK && s->same != NULL) {
            code = check_same(s, values, i / n);
        }
        code = code == CLI_EXIT_OK && cli_interrupted() ? CLI_EXIT_INTERRUPTED : code;
    }
    cli_progress_end(&progress);
    if (n_found > 0 && !s->options->json) {
        fprintf(stderr, "moe-offload: note: %zu of %zu measurements were in %s already\n", n_found,
                n * (size_t)s->options->bench_repeat, s->options->csv);
    }
    return code;
}

static int open_log(cli_sweep *s)
{
    const char *columns[CLI_SWEEP_AXES + 1 + CLI_SWEEP_PARTS];
    size_t n = 0;
    for (size_t a = 0; a < s->n_axes; a++) {
        columns[n++] = s->axes[a].name;
    }
    columns[n++] = "repetition";
    size_t n_keys = n;
    for (size_t m = 0; m < s->n_measures; m++) {
        columns[n++] = s->measures[m].name;
    }
    cli_bench_log_options options = {.path = s->options->csv,
                                     .resume = s->options->resume,
                                     .columns = columns,
                                     .n_columns = n,
                                     .n_keys = n_keys,
                                     .identity = s->identity};
    return cli_bench_log_open(&s->log, &options);
}

/* ---- Results ---- */

/* The numbers of one combination, by repetition, without absent ones. */
static size_t numbers_of(const cli_sweep *s, const char *const *values, const char *name,
                         double *numbers)
{
    size_t n = 0;
    for (size_t r = 0; r < s->options->bench_repeat; r++) {
        const char *text = cli_sweep_find(s, values, r, name);
        double number = text != NULL && text[0] != '\0' ? strtod(text, NULL) : NAN;
        if (s->derived != NULL && strcmp(name, s->derived) == 0) {
            number = s->derive(s, values, r);
        }
        if (isfinite(number)) {
            numbers[n++] = number;
        }
    }
    return n;
}

static void add_measure(cli_bench_table *table, const cli_sweep *s, const char *const *values,
                        const cli_measure *m, double *numbers)
{
    if (m->digits == CLI_MEASURE_TEXT) {
        const char *text = cli_sweep_find(s, values, 0, m->name);
        cli_bench_text(table, m->name, text != NULL ? text : "");
    } else {
        cli_bench_median(table, m->name, m->digits, numbers,
                         numbers_of(s, values, m->name, numbers));
    }
    if (m->is_detail) {
        cli_bench_detail(table);
    }
}

static cli_bench_table *tabulate(const cli_sweep *s, double *numbers)
{
    cli_bench_table *table = cli_bench_table_create(s->bench, "");
    for (size_t i = 0; table != NULL && i < n_combinations(s); i++) {
        const char *values[CLI_SWEEP_AXES];
        choose(s, i, values);
        cli_bench_begin_row(table);
        for (size_t a = 0; a < s->n_axes; a++) {
            cli_bench_text(table, s->axes[a].name, values[a]);
        }
        for (size_t m = 0; m < s->n_measures; m++) {
            add_measure(table, s, values, &s->measures[m], numbers);
        }
        if (s->derived != NULL) {
            const cli_measure derived = {s->derived, 1, false};
            add_measure(table, s, values, &derived, numbers);
        }
    }
    return table;
}

static int plot(const cli_sweep *s, double *numbers)
{
    size_t x = 0;
    while (x + 1 < s->n_axes && !(s->axes[x].is_number && s->axes[x].n > 1)) {
        x++;
    }
    char title[CLI_SWEEP_TEXT];
    const char *of = s->options->model != NULL ? s->options->model : s->options->io_file;
    const char *slash = of != NULL ? strrchr(of, '/') : NULL;
    snprintf(title, sizeof title, "bench %s%s%s", s->bench, of != NULL ? " of " : "",
             slash != NULL ? slash + 1
             : of != NULL  ? of
                           : "");
    for (char *quote = strpbrk(title, "'\n"); quote != NULL; quote = strpbrk(quote, "'\n")) {
        *quote = '_';
    }
    cli_sweep_plot p = {.options = s->options, .title = title};
    p.x = s->axes[x].name;
    p.y = s->plotted;
    int code = cli_sweep_plot_begin(&p);
    for (size_t i = 0; i < n_combinations(s) && code == CLI_EXIT_OK; i++) {
        const char *values[CLI_SWEEP_AXES];
        char curve[CLI_SWEEP_TEXT] = "";
        choose(s, i, values);
        for (size_t a = 0; a < s->n_axes; a++) {
            size_t size = strlen(curve);
            if (a != x && s->axes[a].n > 1) {
                snprintf(curve + size, sizeof curve - size, "%s%s %s", size > 0 ? ", " : "",
                         s->axes[a].name, values[a]);
            }
        }
        code = cli_sweep_plot_point(&p, curve, values[x], numbers,
                                    numbers_of(s, values, s->plotted, numbers));
    }
    return cli_sweep_plot_end(&p, code);
}

static int print(const cli_sweep *s)
{
    double *numbers = calloc(s->options->bench_repeat, sizeof *numbers);
    cli_bench_table *table = numbers != NULL ? tabulate(s, numbers) : NULL;
    int code = table != NULL ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    if (code == CLI_EXIT_OK && s->format != CLI_FORMAT_GNUPLOT) {
        cli_bench_table_about(table, s->identity);
        code = cli_bench_table_print(table, s->options, s->format, NULL, NULL);
    }
    if (code == CLI_EXIT_OK && (s->format == CLI_FORMAT_GNUPLOT || s->options->plot != NULL)) {
        code = plot(s, numbers);
    }
    cli_bench_table_free(&table);
    free(numbers);
    return code;
}

int cli_sweep_run(cli_sweep *s)
{
    int code = cli_sweep_plot_check(s->options);
    code = code == CLI_EXIT_OK ? open_log(s) : code;
    code = code == CLI_EXIT_OK ? run_all(s) : code;
    return code == CLI_EXIT_OK ? print(s) : code;
}

void cli_sweep_close(cli_sweep *s)
{
    cli_bench_log_close(&s->log);
    json_object_put(s->identity);
    s->identity = NULL;
}
