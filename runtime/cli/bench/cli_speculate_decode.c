/* SPDX-License-Identifier: MIT */
/* Runs one configuration: groups of sequences, each group a batch that stays full. As on a server,
 * the sequences of a batch begin and end at different times: each place of the batch first writes a
 * copy of another sequence, shorter or longer, then its own sequence, then further copies. Copies
 * begin behind a prompt that was evaluated before, so only decoding is measured. A pass's time and
 * cost are divided evenly among the tokens that it writes, and tokens of copies do not count, so
 * all configurations are compared on the same tokens. */
#include "cli_speculate_decode.h"

#include <stdlib.h>
#include <string.h>

#include "cli_engine.h"
#include "cli_format.h"
#include "cli_interrupt.h"
#include "cli_prompt.h"
#include "cli_speculate_rows.h"

#define WINDOW 16u /* bytes */

/* A place in the batch. It writes first a copy, which ends early, then its own sequence, then
 * copies. */
typedef struct place {
    moe_session *session;
    size_t source;    /* the sequence from whose prompt it continues */
    size_t n_written; /* of n_tokens */
    size_t n_tokens;
    size_t n_begun; /* so far */
    bool is_own;
} place;

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
    moe_session **prompted; /* [batch] the group's sequences, behind their prompts */
    size_t *begin;          /* [batch] where the sequence begins in the text */
    place *places;          /* [batch] */
    moe_session **active;   /* [batch] */
    int32_t *written;       /* [batch][n_decode] of the current group */
    uint64_t hash;          /* hash of the tokens of all groups so far */
    double seconds;
    size_t n_repeated, n_windows;
} run;

/* Returns how many tokens of the text a sequence needs. */
static size_t n_needed(const cli_speculate_matrix *m)
{
    return m->n_prompt + (m->forced ? m->n_decode : 0);
}

/* Returns where the i-th of n windows begins, which are spread evenly over the text. */
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

static moe_sampling sampling_of(const run *r, size_t index)
{
    moe_sampling sampling;
    moe_sampling_init(&sampling);
    sampling.temperature = (float)r->m->given->bench_temperature;
    sampling.top_k = 0;
    sampling.top_p = 1;
    sampling.min_p = 0;
    sampling.seed = index + (r->m->given->seed > 0 ? (uint64_t)r->m->given->seed : 0);
    return sampling;
}

/* Runs prompts until every sequence has its first token, so that decoding is measured alone. */
static int run_prompts(run *r, size_t group)
{
    moe_session_options options;
    moe_error err = {""};
    moe_session_options_init(&options);
    int status = MOE_OK;
    for (size_t i = 0; i < r->batch && status == MOE_OK; i++) {
        size_t index = group * r->batch + i;
        options.sampling = sampling_of(r, index);
        status = moe_session_create(&r->prompted[i], r->engine, &options, &err);
        if (status == MOE_OK) {
            r->begin[i] = window_of(r, index, r->m->n_prompts * r->batch);
            status = moe_session_feed(r->prompted[i], r->text + r->begin[i], r->m->n_prompt, &err);
        }
    }
    int code = status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
    for (bool waiting = true; waiting && code == CLI_EXIT_OK;) {
        size_t n = 0;
        for (size_t i = 0; i < r->batch; i++) {
            if (moe_session_n_tokens(r->prompted[i]) == r->m->n_prompt) {
                r->active[n++] = r->prompted[i];
            }
        }
        waiting = n > 0;
        code = waiting ? step(r, n) : code;
    }
    return code;
}

/* Returns how many tokens the place's sequence has written since the last call. */
static size_t take(run *r, size_t i)
{
    place *p = &r->places[i];
    int32_t tokens[256];
    size_t n, before = p->n_written;
    while ((n = moe_session_take(p->session, tokens, 256)) > 0) {
        for (size_t k = 0; k < n && p->n_written < p->n_tokens; k++) {
            if (p->is_own) {
                r->written[i * r->m->n_decode + p->n_written] = tokens[k];
            }
            p->n_written++;
        }
    }
    return p->n_written - before;
}

/* Adds to n the number of the text's windows that occurred before in it, and to n_all the number of
 * all its windows. */
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
    for (size_t t = 0; t < r->places[i].n_written; t++) {
        size_t size;
        const char *piece = moe_token_piece(r->engine, tokens[t], true, &size);
        complete = complete && (piece == NULL || cli_buffer_append(&text, piece, size));
    }
    count_repeated(text.data, text.size, &r->n_repeated, &r->n_windows);
    cli_buffer_free(&text);
    return complete ? CLI_EXIT_OK : cli_fail(CLI_EXIT_FAILURE, "out of memory for a text");
}

/* Replaces the model's last choice by the text's token. */
static int force(run *r, size_t i)
{
    moe_error err = {""};
    const place *p = &r->places[i];
    size_t at = r->m->n_prompt + p->n_written - 1;
    const int32_t *token = r->text + r->begin[p->source] + at;
    int status = moe_session_truncate(p->session, at, &err);
    if (status == MOE_OK) {
        status = moe_session_feed(p->session, token, 1, &err);
    }
    return status == MOE_OK ? CLI_EXIT_OK : cli_report(status, &err);
}

/* Records the draft length that was chosen for the step that just ended, and its result. */
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
    cli_bench_real(t, "estimated_plain_mib", 4,
                   (now->modelled_plain_cost - before->modelled_plain_cost) / 1048576.0);
    r->before = *now;
}

/* Begins the next sequence of a place that is empty or whose sequence has ended. First copies have
 * different lengths, so that the places' own sequences begin and end at different times. Copies of
 * sampled text have other random numbers. */
static int begin_next(run *r, size_t i)
{
    moe_error err = {""};
    place *p = &r->places[i];
    size_t n = r->batch, first = r->m->n_decode * i / n;
    moe_session_close(&p->session);
    p->n_begun += p->n_begun == 0 && first < 2; /* no first copy: its own sequence begins at once */
    p->is_own = p->n_begun == 1;
    p->source = p->is_own ? i : (i + n / 2 + p->n_begun) % n;
    p->n_tokens = p->n_begun == 0 ? first : r->m->n_decode;
    p->n_written = 0;
    moe_sampling sampling = sampling_of(r, (r->m->n_prompts + p->n_begun++) * n + i);
    int status = moe_session_fork(&p->session, r->prompted[p->source], &err);
    if (status == MOE_OK && !p->is_own) {
        status = moe_session_set_sampling(p->session, &sampling, &err);
    }
    if (status != MOE_OK) {
        return cli_report(status, &err);
    }
    (void)take(r, i); /* the first token came with the prompt */
    return CLI_EXIT_OK;
}

static bool has_ended(const place *p)
{
    return p->n_written >= p->n_tokens || moe_session_is_full(p->session);
}

static double modelled_cost(const run *r)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(r->engine, &stats);
    return stats.speculation.modelled_cost;
}

/* Runs one step of all places. *n_left: the group's own sequences that have not ended. */
static int decode_step(run *r, size_t *n_left)
{
    int code = CLI_EXIT_OK;
    size_t n_own = 0, n_all = 0;
    for (size_t i = 0; i < r->batch; i++) {
        code = r->m->forced && code == CLI_EXIT_OK ? force(r, i) : code;
        r->active[i] = r->places[i].session;
    }
    double cost = modelled_cost(r);
    uint64_t begin = cli_engine_now_ns(r->engine);
    code = code == CLI_EXIT_OK ? step(r, r->batch) : code;
    double seconds = cli_seconds(cli_engine_now_ns(r->engine) - begin);
    if (code == CLI_EXIT_OK && r->keeps_steps) {
        keep_step(r, r->batch);
    }
    for (size_t i = 0; i < r->batch && code == CLI_EXIT_OK; i++) {
        place *p = &r->places[i];
        size_t n = take(r, i);
        n_all += n;
        n_own += p->is_own ? n : 0;
        r->out->n_iterations += p->is_own;
        if (!has_ended(p)) {
            continue;
        }
        code = p->is_own ? note_repeated(r, i) : CLI_EXIT_OK;
        *n_left -= p->is_own;
        code = code == CLI_EXIT_OK && *n_left > 0 ? begin_next(r, i) : code;
    }
    double share = n_all > 0 ? (double)n_own / (double)n_all : 0;
    r->seconds += share * seconds;
    r->out->seconds += seconds;
    r->out->cost += share * (modelled_cost(r) - cost);
    r->out->n_emitted += n_own;
    r->out->n_all += n_all;
    return code;
}

/* Runs until every sequence has its tokens. */
static int decode_group(run *r)
{
    int code = CLI_EXIT_OK;
    for (size_t i = 0; i < r->batch && code == CLI_EXIT_OK; i++) {
        r->places[i] = (place){0};
        code = begin_next(r, i);
    }
    for (size_t n_left = r->batch; n_left > 0 && code == CLI_EXIT_OK;) {
        code = decode_step(r, &n_left);
    }
    cli_hash_bytes(r->written, r->batch * r->m->n_decode * sizeof(int32_t), r->hash, r->out->hash);
    r->hash = strtoull(r->out->hash + 16, NULL, 16);
    return code;
}

static void close_group(run *r)
{
    for (size_t i = 0; i < r->batch; i++) {
        moe_session_close(&r->places[i].session);
        moe_session_close(&r->prompted[i]);
    }
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
        close_group(r);
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

int cli_speculate_decode(const cli_speculate_matrix *m, const cli_speculate_config *c, double cache,
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
    uint64_t before = out->n_emitted;
    size_t context = m->n_prompt + m->n_decode + 2 + 64;
    int code = cli_engine_open(&r.engine, &options, context);
    if (code != CLI_EXIT_OK) {
        return code;
    }
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(r.engine, &info);
    out->simulated = info.device_simulated;
    r.prompted = calloc(batch, sizeof(moe_session *));
    r.active = calloc(batch, sizeof(moe_session *));
    r.places = calloc(batch, sizeof *r.places);
    r.begin = calloc(batch, sizeof *r.begin);
    r.written = calloc(batch * m->n_decode, sizeof *r.written);
    code = r.prompted == NULL || r.active == NULL || r.places == NULL || r.begin == NULL ||
                   r.written == NULL
               ? cli_fail(CLI_EXIT_FAILURE, "out of memory for %zu sequences", batch)
               : read_text(&r);
    if (code == CLI_EXIT_OK) {
        code = run_groups(&r);
    }
    out->speed[repetition] = r.seconds > 0 ? (double)(out->n_emitted - before) / r.seconds : 0;
    out->repeated = r.n_windows > 0 ? (double)r.n_repeated / (double)r.n_windows : 0;
    moe_free(r.text);
    free(r.prompted);
    free(r.active);
    free(r.places);
    free(r.begin);
    free(r.written);
    moe_engine_close(&r.engine);
    return code;
}
