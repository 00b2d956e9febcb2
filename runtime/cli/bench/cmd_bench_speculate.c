/* SPDX-License-Identifier: MIT */
/* bench speculate: compares configurations of speculation (and of lossy modes) on the same prompts,
 * cache sizes and batches, with the first configuration as the baseline. Runs are interleaved, and
 * ratios are medians of pairs, because shared machines are noisy. Every configuration without a
 * lossy mode must write the tokens of the first, or the command fails. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>
#include <moe/moe.h>

#include "cli_bench_table.h"
#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_json.h"
#include "cli_prompt.h"
#include "cli_sha256.h"
#include "cli_speculate_rows.h"
#include "cli_trace.h"
#include "bench_commands.h"

#define DEFAULT_CONFIGS "off; auto; ngram; self"
#define MOST_CONFIGS    64
#define MOST_WORDS      24
#define CONFIG_SIZE     256
#define DEFAULT_DECODE  64

typedef struct config {
    char text[CONFIG_SIZE];
    char words[CONFIG_SIZE]; /* cut into arguments */
    cli_options options;
    bool lossy;
} config;

/* One configuration under one cache size and batch: sums over repetitions, and each one's speed. */
typedef struct outcome {
    double *speed; /* [repeat] tokens a second */
    double *ratio; /* [repeat] ratio to the first configuration of the same repetition */
    double seconds;
    uint64_t n_emitted;
    moe_engine_stats sum;
    uint64_t n_iterations; /* steps times sequences */
    char sha256[CLI_SHA256_HEX_SIZE];
    bool simulated;
} outcome;

typedef struct matrix {
    const cli_options *given;
    config configs[MOST_CONFIGS];
    size_t n_configs;
    double caches[CLI_BENCH_PARTS];
    size_t n_caches;
    uint64_t batches[CLI_BENCH_PARTS];
    size_t n_batches;
    size_t n_prompt, n_decode, n_prompts, repeat;
    outcome *outcomes; /* [n_caches][n_batches][n_configs] */
} matrix;

/* ---- Configurations ---- */

static bool is_lossy(const cli_options *o)
{
    return o->expert_budget > 0 || (o->buddy != NULL && strcmp(o->buddy, "off") != 0);
}

/* "self --draft-max 4": a mode and those options of run that say how tokens are drafted and
 * computed. The bench itself sets the others, such as -n or --temp. */
static int parse_config(matrix *m, const char *text, size_t size)
{
    config *c = &m->configs[m->n_configs];
    char *argv[MOST_WORDS];
    int argc = 0;
    if (m->n_configs == MOST_CONFIGS || size >= CONFIG_SIZE) {
        return cli_fail(CLI_EXIT_USAGE, "bench speculate: --configs: at most %d, of %d characters",
                        MOST_CONFIGS, CONFIG_SIZE - 1);
    }
    memcpy(c->text, text, size);
    memcpy(c->words, text, size);
    argv[argc++] = "--speculate";
    for (char *word = strtok(c->words, " "); word != NULL && argc < MOST_WORDS;
         word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    if (argc < 2) {
        return cli_fail(CLI_EXIT_USAGE, "bench speculate: --configs: an empty one in '%s'",
                        m->given->configs);
    }
    static const cli_command configuration = {
        .name = "bench speculate", .word = "--configs", .bit = CLI_CONFIG};
    c->options = *m->given;
    int code;
    if (!cli_options_apply(&c->options, &configuration, argc, argv, &code)) {
        return code;
    }
    c->lossy = is_lossy(&c->options);
    m->n_configs++;
    return CLI_EXIT_OK;
}

static int parse_configs(matrix *m)
{
    const char *text = m->given->configs != NULL ? m->given->configs : DEFAULT_CONFIGS;
    int code = CLI_EXIT_OK;
    while (*text != '\0' && code == CLI_EXIT_OK) {
        text += strspn(text, " ");
        size_t n = strcspn(text, ";");
        size_t size = n;
        while (size > 0 && text[size - 1] == ' ') {
            size--;
        }
        code = parse_config(m, text, size);
        text += n + (text[n] == ';');
    }
    return code;
}

static int read_matrix(matrix *m)
{
    const cli_options *o = m->given;
    int code = parse_configs(m);
    if (code == CLI_EXIT_OK) {
        code = cli_bench_shares(o->cache_sizes != NULL ? o->cache_sizes : "100%", "--expert-cache",
                                m->caches, &m->n_caches);
    }
    if (code == CLI_EXIT_OK) {
        code = cli_bench_counts(o->batches != NULL ? o->batches : "1", "--parallel", m->batches,
                                &m->n_batches);
    }
    m->n_prompt = o->bench_prompt;
    m->n_decode = o->predict < 1 ? DEFAULT_DECODE : (size_t)o->predict;
    m->n_prompts = o->trace_prompts;
    m->repeat = o->bench_repeat;
    size_t n = m->n_caches * m->n_batches * m->n_configs;
    m->outcomes = calloc(n > 0 ? n : 1, sizeof *m->outcomes);
    for (size_t i = 0; m->outcomes != NULL && i < n; i++) {
        m->outcomes[i].speed = calloc(m->repeat, sizeof(double));
        m->outcomes[i].ratio = calloc(m->repeat, sizeof(double));
    }
    return code != CLI_EXIT_OK || m->outcomes != NULL
               ? code
               : cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu outcomes", n);
}

/* ---- One run ---- */

typedef struct run {
    const matrix *m;
    moe_engine *engine;
    outcome *out;
    int32_t *text;
    size_t n_text;
    size_t batch;
    moe_session **sessions, **active;
    size_t *n_written;
    int32_t *written; /* [batch][n_decode] of the current group */
    cli_sha256 hash;
    double seconds;
    uint64_t n_emitted;
} run;

/* The i-th of n windows of the text, spread evenly over it. */
static size_t window_of(const run *r, size_t index, size_t n)
{
    size_t room = r->n_text - r->m->n_prompt;
    return n > 1 ? room * index / (n - 1) : 0;
}

static int step(run *r, size_t n)
{
    moe_error err = {""};
    int status = moe_step(r->engine, r->active, n, &err);
    if (cli_interrupted()) {
        return CLI_EXIT_INTERRUPTED;
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* Runs prompts until every sequence has its first token, so that decoding is measured alone. */
static int run_prompts(run *r, size_t group)
{
    moe_session_options options;
    moe_error err = {""};
    moe_session_options_init(&options);
    options.sampling.temperature = (float)r->m->given->bench_temperature;
    options.sampling.top_k = 0;
    options.sampling.top_p = 1;
    options.sampling.min_p = 0;
    int status = MOE_OK;
    for (size_t i = 0; i < r->batch && status == MOE_OK; i++) {
        size_t index = group * r->batch + i;
        options.sampling.seed = index;
        status = moe_session_create(&r->sessions[i], r->engine, &options, &err);
        if (status == MOE_OK) {
            size_t at = window_of(r, index, r->m->n_prompts * r->batch);
            status = moe_session_feed(r->sessions[i], r->text + at, r->m->n_prompt, &err);
        }
        r->n_written[i] = 0;
    }
    int code = status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
    for (bool waiting = true; waiting && code == CLI_EXIT_OK;) {
        size_t n = 0;
        for (size_t i = 0; i < r->batch; i++) {
            if (moe_session_n_tokens(r->sessions[i]) == r->m->n_prompt) {
                r->active[n++] = r->sessions[i];
            }
        }
        waiting = n > 0;
        code = waiting ? step(r, n) : code;
    }
    return code;
}

static void take(run *r, size_t i)
{
    int32_t tokens[256];
    size_t n;
    while ((n = moe_session_take(r->sessions[i], tokens, 256)) > 0) {
        for (size_t k = 0; k < n && r->n_written[i] < r->m->n_decode; k++) {
            r->written[i * r->m->n_decode + r->n_written[i]++] = tokens[k];
        }
    }
}

/* Runs until every sequence has its tokens; finished sequences leave the batch. */
static int decode_group(run *r)
{
    int code = CLI_EXIT_OK;
    uint64_t begin = cli_engine_now_ns(r->engine);
    for (size_t i = 0; i < r->batch; i++) {
        take(r, i);
        r->n_emitted -= r->n_written[i]; /* the first token came with the prompt */
    }
    for (bool busy = true; busy && code == CLI_EXIT_OK;) {
        size_t n = 0;
        for (size_t i = 0; i < r->batch; i++) {
            if (r->n_written[i] < r->m->n_decode && !moe_session_is_full(r->sessions[i])) {
                r->active[n++] = r->sessions[i];
            }
        }
        busy = n > 0;
        code = busy ? step(r, n) : code;
        r->out->n_iterations += n;
        for (size_t i = 0; i < r->batch; i++) {
            take(r, i);
        }
    }
    r->seconds += cli_seconds(cli_engine_now_ns(r->engine) - begin);
    for (size_t i = 0; i < r->batch; i++) {
        r->n_emitted += r->n_written[i];
        cli_sha256_update(&r->hash, r->written + i * r->m->n_decode,
                          r->n_written[i] * sizeof(int32_t));
        moe_session_close(&r->sessions[i]);
    }
    return code;
}

static int run_groups(run *r)
{
    int code = CLI_EXIT_OK;
    for (size_t g = 0; g < r->m->n_prompts && code == CLI_EXIT_OK; g++) {
        moe_engine_stats before = {.struct_size = sizeof before};
        moe_engine_stats after = {.struct_size = sizeof after};
        code = run_prompts(r, g);
        moe_engine_get_stats(r->engine, &before);
        if (code == CLI_EXIT_OK) {
            code = decode_group(r);
        }
        moe_engine_get_stats(r->engine, &after);
        cli_speculate_add_stats(&r->out->sum, &before, &after);
    }
    for (size_t i = 0; i < r->batch; i++) {
        moe_session_close(&r->sessions[i]);
    }
    return code;
}

static int read_text(run *r)
{
    cli_buffer text = {0};
    int code = cli_prompt_text(&text, r->m->given);
    if (code == CLI_EXIT_OK) {
        code = cli_prompt_tokens(r->engine, r->m->given, &text, &r->text, &r->n_text);
    }
    cli_buffer_free(&text);
    if (code == CLI_EXIT_OK && r->n_text < r->m->n_prompt) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: %zu tokens, fewer than a prompt of %zu",
                        r->m->given->prompt_file, r->n_text, r->m->n_prompt);
    }
    return code;
}

static int run_config(matrix *m, const config *c, double cache, size_t batch, size_t repetition,
                      outcome *out)
{
    cli_options options = c->options;
    options.quiet = true;
    options.expert_cache.share = cache;
    run r = {.m = m, .out = out, .batch = batch};
    size_t context = m->n_prompt + m->n_decode + 2 + 64;
    int code = cli_engine_open(&r.engine, &options, context);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(r.engine, &info);
    out->simulated = info.device_simulated;
    r.sessions = calloc(batch, sizeof(moe_session *));
    r.active = calloc(batch, sizeof(moe_session *));
    r.n_written = calloc(batch, sizeof *r.n_written);
    r.written = calloc(batch * m->n_decode, sizeof *r.written);
    cli_sha256_init(&r.hash);
    code = r.sessions == NULL || r.active == NULL || r.n_written == NULL || r.written == NULL
               ? cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu sequences", batch)
               : read_text(&r);
    if (code == CLI_EXIT_OK) {
        code = run_groups(&r);
    }
    cli_sha256_finish(&r.hash, out->sha256);
    out->speed[repetition] = r.seconds > 0 ? (double)r.n_emitted / r.seconds : 0;
    out->seconds += r.seconds;
    out->n_emitted += r.n_emitted;
    moe_free(r.text);
    free(r.sessions);
    free(r.active);
    free(r.n_written);
    free(r.written);
    moe_engine_close(&r.engine);
    return code;
}

static int check_text(const matrix *m, const outcome *first, size_t c)
{
    bool same = strcmp(first->sha256, first[c].sha256) == 0;
    bool must = m->given->bench_temperature == 0 && !m->configs[c].lossy && !m->configs[0].lossy;
    return same || !must
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "configuration '%s' wrote other tokens than '%s'",
                          m->configs[c].text, m->configs[0].text);
}

/* Runs all configurations of one cache size and batch in turn, for all repetitions. */
static int run_cell(matrix *m, size_t cache, size_t batch)
{
    outcome *first = m->outcomes + (cache * m->n_batches + batch) * m->n_configs;
    int code = CLI_EXIT_OK;
    for (size_t r = 0; r < m->repeat; r++) {
        for (size_t c = 0; c < m->n_configs && code == CLI_EXIT_OK; c++) {
            code = run_config(m, &m->configs[c], m->caches[cache], m->batches[batch], r, &first[c]);
            if (code == CLI_EXIT_OK) {
                first[c].ratio[r] = first[c].speed[r] / first->speed[r];
                code = check_text(m, first, c);
            }
        }
    }
    return code;
}

/* ---- Results ---- */

static void begin_row(cli_bench_table *table, const matrix *m, size_t cache, size_t batch, size_t c)
{
    cli_bench_begin_row(table);
    cli_bench_real(table, "cache_percent", 1, 100 * m->caches[cache]);
    cli_bench_count(table, "batch", m->batches[batch]);
    cli_bench_text(table, "config", m->configs[c].text);
}

static const outcome *outcome_of(const matrix *m, size_t cache, size_t batch, size_t c)
{
    return &m->outcomes[(cache * m->n_batches + batch) * m->n_configs + c];
}

/* The layers and positions for which any configuration's foresight has results: every row has them.
 */
static cli_speculate_extent extent_of(const matrix *m)
{
    cli_speculate_extent extent = {0, 0};
    for (size_t i = 0; i < m->n_caches * m->n_batches * m->n_configs; i++) {
        cli_speculate_widen(&extent, &m->outcomes[i].sum.speculation);
    }
    return extent;
}

static void add_row(cli_bench_table *table, const matrix *m, size_t cache, size_t batch, size_t c)
{
    const outcome *o = outcome_of(m, cache, batch, c);
    double tokens = o->n_emitted > 0 ? (double)o->n_emitted : 1;
    cli_speculate_extent extent = extent_of(m);
    begin_row(table, m, cache, batch, c);
    cli_bench_median(table, "tokens_per_s", 2, o->speed, m->repeat);
    cli_bench_median(table, "ratio", 3, o->ratio, m->repeat);
    cli_bench_real(table, "modelled_ratio", 4,
                   o->sum.speculation.modelled_cost > 0
                       ? o->sum.speculation.modelled_plain_cost / o->sum.speculation.modelled_cost
                       : 0);
    cli_bench_real(table, "modelled_mib_per_token", 3,
                   o->sum.speculation.modelled_cost / (1048576.0 * tokens));
    cli_bench_real(table, "tokens_per_iteration", 3, tokens / (double)o->n_iterations);
    cli_speculate_add_cells(table, &o->sum, tokens, o->seconds);
    cli_speculate_add_recall(table, &o->sum.speculation, &extent);
}

/* Prints how much of verification's requests a draft had foreseen: a separate table for people; the
 * other formats have it in the rows of the first. */
static int print_foresight(const matrix *m)
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
                const outcome *o = outcome_of(m, i, b, c);
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

static int print_results(const matrix *m, unsigned format)
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

int cmd_bench_speculate(const cli_options *options)
{
    unsigned format = cli_output_format(options);
    matrix *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return cli_fail(CLI_EXIT_FAILURE, "out of memory");
    }
    m->given = options;
    int code = read_matrix(m);
    cli_interrupt_install();
    for (size_t i = 0; i < m->n_caches && code == CLI_EXIT_OK; i++) {
        for (size_t b = 0; b < m->n_batches && code == CLI_EXIT_OK; b++) {
            code = run_cell(m, i, b);
        }
    }
    if (code == CLI_EXIT_OK) {
        code = print_results(m, format);
    }
    size_t n = m->n_caches * m->n_batches * m->n_configs;
    for (size_t i = 0; m->outcomes != NULL && i < n; i++) {
        free(m->outcomes[i].speed);
        free(m->outcomes[i].ratio);
    }
    free(m->outcomes);
    free(m);
    return code;
}
