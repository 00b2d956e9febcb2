/* SPDX-License-Identifier: MIT */
/* bench speculate: compares configurations of speculation (and of lossy modes) on the same prompts,
 * cache sizes and batches, with the first configuration as the baseline. Runs are interleaved, and
 * ratios are medians of pairs, because shared machines are noisy. Every configuration without a
 * lossy mode must write the tokens of the first, or the command fails. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_commands.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_trace.h"
#include "cli_speculate_matrix.h"
#include "cli_speculate_rows.h"

/* ---- Results ---- */

static void begin_row(cli_bench_table *table, const cli_speculate_matrix *m, size_t cache,
                      size_t batch, size_t c)
{
    cli_bench_begin_row(table);
    cli_bench_real(table, "cache_percent", 1, 100 * m->caches[cache]);
    cli_bench_count(table, "batch", m->batches[batch]);
    cli_bench_text(table, "config", m->configs[c].text);
}

/* The layers and positions for which any configuration's foresight has results. Every row has cells
 * for them. */
static cli_speculate_extent extent_of(const cli_speculate_matrix *m)
{
    cli_speculate_extent extent = {0, 0};
    for (size_t i = 0; i < m->n_caches * m->n_batches * m->n_configs; i++) {
        cli_speculate_widen(&extent, &m->outcomes[i].sum.speculation);
    }
    return extent;
}

static void add_row(cli_bench_table *table, const cli_speculate_matrix *m, size_t cache,
                    size_t batch, size_t c)
{
    const cli_speculate_outcome *o = cli_speculate_outcome_of(m, cache, batch, c);
    const cli_speculate_outcome *first = cli_speculate_outcome_of(m, cache, batch, 0);
    const moe_speculation_stats *s = &o->sum.speculation;
    double tokens = o->n_emitted > 0 ? (double)o->n_emitted : 1;
    double all = o->n_all > 0 ? (double)o->n_all : 1;
    cli_speculate_extent extent = extent_of(m);
    begin_row(table, m, cache, batch, c);
    cli_bench_median(table, "tokens_per_s", 2, o->speed, m->repeat);
    cli_bench_median(table, "ratio", 3, o->ratio, m->repeat);
    cli_bench_real(table, "gain", 4, cli_speculate_gain(first, o));
    cli_bench_real(table, "estimated_gain", 4,
                   s->modelled_cost > 0 ? s->modelled_plain_cost / s->modelled_cost : NAN);
    cli_bench_real(table, "modelled_mib_per_token", 4, o->cost / (1048576.0 * tokens));
    cli_bench_real(table, "tokens_per_iteration", 3, tokens / (double)o->n_iterations);
    cli_speculate_add_cells(table, &o->sum, all, o->seconds);
    cli_speculate_add_recall(table, &o->sum.speculation, &extent);
}

/* Prints how much of verification's requests a draft had foreseen: a separate table for people; the
 * other formats have it in the rows of the first. */
static int print_foresight(const cli_speculate_matrix *m)
{
    cli_speculate_extent extent = extent_of(m);
    if (extent.n_layers == 0) {
        return CLI_EXIT_OK;
    }
    cli_bench_table *table = cli_bench_table_create(
        "foresight", "share of verification's choices that the draft's routers had foreseen, by "
                     "layer and by position in the draft (0: the token it began from)");
    for (size_t i = 0; table != NULL && i < m->n_caches; i++) {
        for (size_t b = 0; b < m->n_batches; b++) {
            for (size_t c = 0; c < m->n_configs; c++) {
                const cli_speculate_outcome *o = cli_speculate_outcome_of(m, i, b, c);
                if (o->sum.speculation.foresight_asked > 0) {
                    begin_row(table, m, i, b, c);
                    cli_speculate_add_recall_cells(table, &o->sum.speculation, &extent);
                }
            }
        }
    }
    int code = table == NULL
                   ? cli_fail(CLI_EXIT_FAILURE, "out of memory")
                   : cli_bench_table_print(table, m->given, CLI_FORMAT_TABLE, "batch", "layer_0");
    cli_bench_table_free(&table);
    return code;
}

static int print_results(const cli_speculate_matrix *m, unsigned format)
{
    char title[512];
    snprintf(title, sizeof title,
             "%s%s; %zu groups of prompts of %zu tokens, %zu decoded each, %zu repetitions "
             "interleaved; ratios are to '%s'",
             m->given->model, m->outcomes->simulated ? " on a SIMULATED device" : "", m->n_prompts,
             m->n_prompt, m->n_decode, m->repeat, m->configs[0].text);
    cli_bench_table *table = cli_bench_table_create("speculate", title);
    for (size_t i = 0; table != NULL && i < m->n_caches; i++) {
        for (size_t b = 0; b < m->n_batches; b++) {
            for (size_t c = 0; c < m->n_configs; c++) {
                add_row(table, m, i, b, c);
            }
        }
    }
    int code = table == NULL ? cli_fail(CLI_EXIT_FAILURE, "out of memory")
                             : cli_bench_table_print(table, m->given, format, "batch", "ratio");
    cli_bench_table_free(&table);
    return code == CLI_EXIT_OK && format == CLI_FORMAT_TABLE ? print_foresight(m) : code;
}

/* Runs, and prints every step instead of the results. */
static int run_steps(cli_speculate_matrix *m, unsigned format)
{
    m->steps = cli_bench_table_create(
        "lengths", "every step: K, the most tokens drafted for a sequence; the utility of the last "
                   "16 steps (plain decoding: 1); modelled_mib: its cost (with --cost bytes)");
    int code =
        m->steps != NULL ? cli_speculate_run(m) : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    if (code == CLI_EXIT_OK) {
        code = cli_bench_table_print(m->steps, m->given, format, "step", "k,utility");
    }
    cli_bench_table_free(&m->steps);
    return code;
}

int cmd_bench_speculate(const cli_options *options)
{
    if (options->suite != NULL) {
        return cmd_bench_suite(options);
    }
    cli_speculate_matrix *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    cli_interrupt_install();
    int code = cli_speculate_open(m, options);
    if (code == CLI_EXIT_OK && options->lengths) {
        code = run_steps(m, cli_output_format(options));
    } else if (code == CLI_EXIT_OK) {
        code = cli_speculate_run(m);
        code = code == CLI_EXIT_OK ? print_results(m, cli_output_format(options)) : code;
    }
    cli_speculate_close(m);
    free(m);
    return code;
}
