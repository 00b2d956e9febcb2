/* SPDX-License-Identifier: MIT */
#include "cli_speculate_matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_prompt.h"
#include "cli_speculate_rows.h"

#define DEFAULT_CONFIGS "off; auto; ngram; self"
#define MOST_WORDS      24
#define DEFAULT_DECODE  64
#define WINDOW          16u /* bytes */

/* ---- Configurations ---- */

static bool is_lossy(const cli_options *o)
{
    return o->expert_budget > 0 || (o->buddy != NULL && strcmp(o->buddy, "off") != 0) ||
           (o->low_bit != NULL && strcmp(o->low_bit, "off") != 0);
}

/* "self --draft-max 4": a mode and those options of run that say how tokens are drafted and
 * computed. The bench itself sets the others, such as -n or --temp. */
static int parse_config(cli_speculate_matrix *m, const char *text, size_t size)
{
    cli_speculate_config *c = &m->configs[m->n_configs];
    char *argv[MOST_WORDS];
    int argc = 0;
    if (m->n_configs == CLI_SPECULATE_CONFIGS || size >= CLI_SPECULATE_WORDS) {
        return cli_fail(CLI_EXIT_USAGE, "bench speculate: --configs: at most %d, of %d characters",
                        CLI_SPECULATE_CONFIGS, CLI_SPECULATE_WORDS - 1);
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

static int parse_configs(cli_speculate_matrix *m)
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

int cli_speculate_open(cli_speculate_matrix *m, const cli_options *o)
{
    *m = (cli_speculate_matrix){.given = o};
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
    const cli_speculate_matrix *m;
    const cli_speculate_config *config;
    double cache;
    bool keeps_steps;
    uint64_t n_steps;
    moe_speculation_stats before; /* the step */
    moe_engine *engine;
    cli_speculate_outcome *out;
    int32_t *text;
    size_t n_text;
    size_t batch;
    moe_session **sessions, **active;
    size_t *n_written;
    size_t *begin;    /* of the sequence in the text */
    int32_t *written; /* [batch][n_decode] of the current group */
    cli_sha256 hash;
    double seconds;
    uint64_t n_emitted;
    size_t n_repeated, n_windows;
} run;

/* The tokens of the text that a sequence needs. */
static size_t n_needed(const cli_speculate_matrix *m)
{
    return m->n_prompt + (m->forced ? m->n_decode : 0);
}

/* The i-th of n windows of the text, spread evenly over it. */
static size_t window_of(const run *r, size_t index, size_t n)
{
    size_t room = r->n_text - n_needed(r->m);
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
            r->begin[i] = window_of(r, index, r->m->n_prompts * r->batch);
            status = moe_session_feed(r->sessions[i], r->text + r->begin[i], r->m->n_prompt, &err);
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

/* Adds to n how many of the text's windows it had before, and to n_all how many it has. */
static void count_repeated(const char *text, size_t size, size_t *n, size_t *n_all)
{
    for (size_t i = 0; i + WINDOW <= size; i++) {
        bool again = false;
        for (size_t k = 0; k < i && !again; k++) {
            again = memcmp(text + k, text + i, WINDOW) == 0;
        }
        *n += again;
        *n_all += 1;
    }
}

static int note_repeated(run *r, size_t i)
{
    const int32_t *tokens = r->written + i * r->m->n_decode;
    cli_buffer text = {0};
    bool complete = true;
    for (size_t t = 0; t < r->n_written[i]; t++) {
        size_t size;
        const char *piece = moe_token_piece(r->engine, tokens[t], true, &size);
        complete = complete && (piece == NULL || cli_buffer_append(&text, piece, size));
    }
    count_repeated(text.data, text.size, &r->n_repeated, &r->n_windows);
    cli_buffer_free(&text);
    return complete ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory for a text");
}

/* Replaces what the model chose last by the text's token. */
static int force(run *r, size_t i)
{
    moe_error err = {""};
    size_t at = r->n_written[i] - 1;
    const int32_t *token = r->text + r->begin[i] + r->m->n_prompt + at;
    int status = moe_session_truncate(r->sessions[i], r->m->n_prompt + at, &err);
    if (status == MOE_OK) {
        status = moe_session_feed(r->sessions[i], token, 1, &err);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* What length control chose for the step that just ended, and what came of it. */
static void keep_step(run *r, size_t n_sequences)
{
    cli_bench_table *t = r->m->steps;
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(r->engine, &stats);
    const moe_speculation_stats *now = &stats.speculation, *before = &r->before;
    uint64_t accepted = now->accepted - before->accepted;
    cli_bench_begin_row(t);
    cli_bench_real(t, "cache_percent", 1, 100 * r->cache);
    cli_bench_count(t, "batch", r->batch);
    cli_bench_text(t, "config", r->config->text);
    cli_bench_count(t, "step", r->n_steps++);
    cli_bench_count(t, "sequences", n_sequences);
    cli_bench_count(t, "k", now->draft_length);
    cli_bench_real(t, "utility", 4, now->utility);
    cli_bench_count(t, "drafted", now->drafted - before->drafted);
    cli_bench_count(t, "accepted", accepted);
    cli_bench_count(t, "tokens", n_sequences + accepted);
    cli_bench_real(t, "modelled_mib", 4, (now->modelled_cost - before->modelled_cost) / 1048576.0);
    r->before = *now;
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
                code = r->m->forced && code == CLI_EXIT_OK ? force(r, i) : code;
                r->active[n++] = r->sessions[i];
            }
        }
        busy = n > 0;
        code = busy ? step(r, n) : code;
        if (busy && code == CLI_EXIT_OK && r->keeps_steps) {
            keep_step(r, n);
        }
        r->out->n_iterations += n;
        for (size_t i = 0; i < r->batch; i++) {
            take(r, i);
        }
    }
    r->seconds += cli_seconds(cli_engine_now_ns(r->engine) - begin);
    for (size_t i = 0; i < r->batch; i++) {
        r->n_emitted += r->n_written[i];
        code = code == CLI_EXIT_OK ? note_repeated(r, i) : code;
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
        r->before = before.speculation;
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
    if (code == CLI_EXIT_OK && r->n_text < n_needed(r->m)) {
        code = cli_fail(CLI_EXIT_FAILURE, "%s: %zu tokens, fewer than a sequence of %zu",
                        r->m->given->prompt_file, r->n_text, n_needed(r->m));
    }
    return code;
}

static int run_config(cli_speculate_matrix *m, const cli_speculate_config *c, double cache,
                      size_t batch, size_t repetition, cli_speculate_outcome *out)
{
    cli_options options = c->options;
    options.quiet = true;
    options.expert_cache.share = cache;
    run r = {.m = m,
             .config = c,
             .cache = cache,
             .keeps_steps = m->steps != NULL && repetition == 0,
             .out = out,
             .batch = batch};
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
    r.begin = calloc(batch, sizeof *r.begin);
    r.written = calloc(batch * m->n_decode, sizeof *r.written);
    cli_sha256_init(&r.hash);
    code = r.sessions == NULL || r.active == NULL || r.n_written == NULL || r.begin == NULL ||
                   r.written == NULL
               ? cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu sequences", batch)
               : read_text(&r);
    if (code == CLI_EXIT_OK) {
        code = run_groups(&r);
    }
    cli_sha256_finish(&r.hash, out->sha256);
    out->speed[repetition] = r.seconds > 0 ? (double)r.n_emitted / r.seconds : 0;
    out->seconds += r.seconds;
    out->repeated = r.n_windows > 0 ? (double)r.n_repeated / (double)r.n_windows : 0;
    out->n_emitted += r.n_emitted;
    moe_free(r.text);
    free(r.sessions);
    free(r.active);
    free(r.n_written);
    free(r.begin);
    free(r.written);
    moe_engine_close(&r.engine);
    return code;
}

static int check_text(const cli_speculate_matrix *m, const cli_speculate_outcome *first, size_t c)
{
    bool same = strcmp(first->sha256, first[c].sha256) == 0;
    bool must = m->given->bench_temperature == 0 && !m->configs[c].lossy && !m->configs[0].lossy;
    return same || !must
               ? CLI_EXIT_OK
               : cli_fail(CLI_EXIT_FAILURE, "configuration '%s' wrote other tokens than '%s'",
                          m->configs[c].text, m->configs[0].text);
}

/* Runs all configurations of one cache size and batch in turn, for all repetitions. */
static int run_cell(cli_speculate_matrix *m, size_t cache, size_t batch)
{
    cli_speculate_outcome *first = m->outcomes + (cache * m->n_batches + batch) * m->n_configs;
    int code = CLI_EXIT_OK;
    for (size_t r = 0; r < m->repeat; r++) {
        for (size_t c = 0; c < m->n_configs && code == CLI_EXIT_OK; c++) {
            if (m->forced && m->configs[c].options.speculate != NULL &&
                strcmp(m->configs[c].options.speculate, "off") != 0) {
                continue;
            }
            code = run_config(m, &m->configs[c], m->caches[cache], m->batches[batch], r, &first[c]);
            if (code == CLI_EXIT_OK) {
                first[c].ratio[r] = first[c].speed[r] / first->speed[r];
                code = check_text(m, first, c);
            }
        }
    }
    return code;
}

int cli_speculate_run(cli_speculate_matrix *m)
{
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < m->n_caches && code == CLI_EXIT_OK; i++) {
        for (size_t b = 0; b < m->n_batches && code == CLI_EXIT_OK; b++) {
            code = run_cell(m, i, b);
        }
    }
    return code;
}

const cli_speculate_outcome *cli_speculate_outcome_of(const cli_speculate_matrix *m, size_t cache,
                                                      size_t batch, size_t config)
{
    return &m->outcomes[(cache * m->n_batches + batch) * m->n_configs + config];
}

void cli_speculate_close(cli_speculate_matrix *m)
{
    size_t n = m->n_caches * m->n_batches * m->n_configs;
    for (size_t i = 0; m->outcomes != NULL && i < n; i++) {
        free(m->outcomes[i].speed);
        free(m->outcomes[i].ratio);
    }
    free(m->outcomes);
    m->outcomes = NULL;
}
