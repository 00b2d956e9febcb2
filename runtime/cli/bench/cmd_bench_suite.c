/* SPDX-License-Identifier: MIT */
/* bench speculate --suite: the standard workload that speculation is judged on. Each text is
 * decoded in four ways: sampled at temperature 0.7 and at 1 with fixed seeds, forced (the text's
 * own tokens), and greedily, where small models repeat themselves and drafts look better than they
 * are: the share of repeated text stands beside each result.
 *
 * Costs are relative to the first configuration, plain decoding with the same cache. Costs are
 * modelled in bytes, so everything but the speed is the same in every run. A configuration that
 * costs more than the first is marked, and listed again at the end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_commands.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_trace.h"
#include "cli_speculate_matrix.h"

#define CONFIGS                                                                                    \
    "off --cost bytes; auto --cost bytes; ngram --cost bytes; self --cost bytes; "                 \
    "off --cost bytes --lookahead 8"
#define CACHES  "10%,25%,50%"
#define BATCHES "1,8"
/* cost of the first configuration / cost of this one: below it, this one loses */
#define LOSES 0.99
#define NOTE  160

typedef struct suite_way {
    const char *name;
    double temperature;
    bool forced;
} suite_way;

static const suite_way ways[] = {
    {"temperature 0.7", 0.7, false},
    {"temperature 1", 1, false},
    {"forced", 0, true},
    {"greedy", 0, false},
};

typedef struct suite {
    cli_options options; /* options of the current text and way */
    cli_speculate_matrix matrix;
    cli_bench_table *table;
    size_t n_cells[CLI_SPECULATE_CONFIGS], n_lost[CLI_SPECULATE_CONFIGS];
    size_t n_won[CLI_SPECULATE_CONFIGS];
    double worst[CLI_SPECULATE_CONFIGS];
    char worst_at[CLI_SPECULATE_CONFIGS][NOTE];
} suite;

/* Returns the expert bytes moved for a token. */
static double moved(const cli_speculate_outcome *o)
{
    const moe_engine_stats *s = &o->sum;
    double bytes = (double)(s->bytes_demand + s->bytes_prefetch + s->speculation.bytes_foresight);
    return o->n_all > 0 ? bytes / (double)o->n_all : NAN;
}

/* Returns the first configuration's cost divided by this one's. For lookahead, which verifies
 * nothing, costs are the bytes moved. */
static double gain_of(const cli_speculate_config *c, const cli_speculate_outcome *o,
                      const cli_speculate_outcome *first)
{
    return c->options.lookahead != NULL ? moved(first) / moved(o) : cli_speculate_gain(first, o);
}

static void note_gain(suite *s, size_t c, double gain, const char *where)
{
    s->n_cells[c]++;
    s->n_lost[c] += gain < LOSES;
    s->n_won[c] += gain > 1 / LOSES;
    if (s->n_cells[c] == 1 || gain < s->worst[c]) {
        s->worst[c] = gain;
        snprintf(s->worst_at[c], NOTE, "%s", where);
    }
}

static void add_row(suite *s, const char *text, const suite_way *way, size_t cache, size_t batch,
                    size_t c)
{
    const cli_speculate_matrix *m = &s->matrix;
    const cli_speculate_outcome *first = cli_speculate_outcome_of(m, cache, batch, 0);
    const cli_speculate_outcome *o = cli_speculate_outcome_of(m, cache, batch, c);
    if (o->n_emitted == 0) {
        return; /* configurations with drafts do not run with forced tokens */
    }
    double gain = c == 0 ? 1 : gain_of(&m->configs[c], o, first);
    char where[NOTE];
    snprintf(where, sizeof where, "%s, %s, cache %.0f %%, batch %u", text, way->name,
             100 * m->caches[cache], (unsigned)m->batches[batch]);
    if (c > 0 && !isnan(gain)) {
        note_gain(s, c, gain, where);
    }
    cli_bench_begin_row(s->table);
    cli_bench_text(s->table, "text", text);
    cli_bench_text(s->table, "tokens", way->name);
    cli_bench_real(s->table, "repeated_percent", 0, 100 * o->repeated);
    cli_bench_real(s->table, "cache_percent", 0, 100 * m->caches[cache]);
    cli_bench_count(s->table, "batch", m->batches[batch]);
    cli_bench_text(s->table, "config", m->configs[c].text);
    cli_bench_real(s->table, "mib_per_token", 3, moved(o) / 1048576);
    cli_bench_real(s->table, "bytes_ratio", 3, moved(o) / moved(first));
    cli_bench_real(s->table, "gain", 3, gain);
    cli_bench_median(s->table, "speed_ratio", 2, o->ratio, m->repeat);
    cli_bench_text(s->table, "verdict",
                   gain < LOSES       ? "LOSES"
                   : gain > 1 / LOSES ? "wins"
                                      : "even");
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static int run_way(suite *s, const char *path, const suite_way *way)
{
    cli_speculate_matrix *m = &s->matrix;
    s->options.prompt_file = path;
    s->options.bench_temperature = way->temperature;
    int code = cli_speculate_open(m, &s->options);
    m->forced = way->forced;
    code = code == CLI_EXIT_OK ? cli_speculate_run(m) : code;
    for (size_t i = 0; code == CLI_EXIT_OK && i < m->n_caches; i++) {
        for (size_t b = 0; b < m->n_batches; b++) {
            for (size_t c = 0; c < m->n_configs; c++) {
                add_row(s, name_of(path), way, i, b, c);
            }
        }
    }
    cli_speculate_close(m);
    return code;
}

static int run_text(suite *s, const char *path)
{
    int code = CLI_EXIT_OK;
    for (size_t w = 0; w < sizeof ways / sizeof *ways && code == CLI_EXIT_OK; w++) {
        code = run_way(s, path, &ways[w]);
    }
    return code;
}

static int run_texts(suite *s, const char *list)
{
    char *copy = strdup(list);
    char *rest = copy;
    int code = copy != NULL ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory");
    for (char *path = strtok_r(rest, ",", &rest); path != NULL && code == CLI_EXIT_OK;
         path = strtok_r(NULL, ",", &rest)) {
        code = run_text(s, path);
    }
    free(copy);
    return code;
}

/* Prints, for people, where each configuration wins and loses. */
static void print_summary(const suite *s)
{
    for (size_t c = 1; c < s->matrix.n_configs; c++) {
        if (s->n_cells[c] > 0) {
            printf("%s: wins in %zu, LOSES in %zu of %zu; at worst %.3f (%s)\n",
                   s->matrix.configs[c].text, s->n_won[c], s->n_lost[c], s->n_cells[c], s->worst[c],
                   s->worst_at[c]);
        }
    }
}

int cmd_bench_suite(const cli_options *options)
{
    unsigned format = cli_output_format(options);
    suite *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    s->options = *options;
    s->options.configs = options->configs != NULL ? options->configs : CONFIGS;
    s->options.cache_sizes = options->cache_sizes != NULL ? options->cache_sizes : CACHES;
    s->options.batches = options->batches != NULL ? options->batches : BATCHES;
    s->table = cli_bench_table_create(
        "suite", "bytes: of experts, for a token; gain: the first configuration's cost over this "
                 "one's (of lookahead: bytes); speed: by the clock, with nothing hidden");
    cli_interrupt_install();
    int code = run_texts(s, options->suite);
    if (code == CLI_EXIT_OK) {
        code = cli_bench_table_print(s->table, options, format, "batch", "gain");
    }
    if (code == CLI_EXIT_OK && format == CLI_FORMAT_TABLE) {
        print_summary(s);
    }
    cli_bench_table_free(&s->table);
    free(s);
    return code;
}
