/* SPDX-License-Identifier: MIT */
/* The exactness contract over everything at once: a covering array of configurations, in which
 * every pair of values of any two settings occurs, writes the same tokens and the same logits.
 * Usage: test_grid MODEL.gguf [EVERY]: with a second argument only every so-manyth configuration,
 * and caches of 5 to 100 %: for models of many experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/expert_cache.h"
#include "engine_fixture.h"
#include "engine_options.h"

#define N_PROMPT       23
#define N_DECODE       7
#define MAX_NEIGHBOURS 7
#define MAX_POLICIES   24

enum setting {
    THREADS,
    NEIGHBOURS,
    KERNELS,
    SHARE,
    POLICY,
    IO,
    BUFFERED,
    PREFETCH,
    OFFLOAD,
    PER_LAYER,
    CHUNK,
    PANEL,
    N_SETTINGS
};

static const char *const setting_names[N_SETTINGS] = {
    "threads",  "neighbours", "kernels", "share",     "policy", "io",
    "buffered", "prefetch",   "offload", "per-layer", "chunk",  "panel"};
static const uint32_t threads_of[] = {1, 2};
static const uint32_t neighbours_of[] = {0, 1, MAX_NEIGHBOURS};
static const moe_kernels kernels_of[] = {MOE_KERNELS_REFERENCE, MOE_KERNELS_AVX2,
                                         MOE_KERNELS_AVX512, MOE_KERNELS_NATIVE};
/* Of the tiny models; a model of many experts can do with less. */
static double share_of[] = {0.13, 0.25, 0.5, 0.75, 1.0};
static const double small_shares[] = {0.05, 0.1, 0.25, 0.5, 1.0};
static const moe_io_kind io_of[] = {MOE_IO_URING, MOE_IO_THREADS, MOE_IO_SYNC};
static const moe_offload_mode offload_of[] = {MOE_OFFLOAD_AUTO, MOE_OFFLOAD_ON_DEMAND};
static const uint32_t chunk_of[] = {11, 64};
static const uint32_t panel_of[] = {1, 14, 4096}; /* none, a part of the prompt, all of it */

typedef struct row {
    uint8_t value[N_SETTINGS];
} row;

typedef struct array {
    uint8_t n_values[N_SETTINGS];
    const char *policies[MAX_POLICIES];
    bool covered[N_SETTINGS][N_SETTINGS][MAX_POLICIES][MAX_POLICIES];
    row rows[400];
    size_t n_rows;
    uint32_t dice;
} array;

typedef struct result {
    int32_t tokens[N_DECODE];
    float *logits;
} result;

static const char *model_path;
static size_t every = 1;
static array design;

/* Policies that work without calibration or foresight. */
static void collect_values(array *a)
{
    const uint8_t counts[N_SETTINGS] = {2, 3, 4, 5, 0, 3, 2, 2, 2, 2, 2, 3};
    memcpy(a->n_values, counts, sizeof counts);
    for (uint32_t i = 0; moe_policy_at(i) != NULL; i++) {
        if ((moe_policy_at(i)->needs & ~(uint32_t)MOE_POLICY_NEEDS_GATES) == 0) {
            assert_true(a->n_values[POLICY] < MAX_POLICIES);
            a->policies[a->n_values[POLICY]++] = moe_policy_at(i)->name;
        }
    }
}

/* What the engine refuses: on-demand keeps nothing, so neither policy nor prefetch mean anything.
 * Policy 0 and prefetch 0 stand for "not given" then. */
static bool is_allowed(const row *r)
{
    return r->value[OFFLOAD] == 0 || (r->value[POLICY] == 0 && r->value[PREFETCH] == 0);
}

static bool pair_is_allowed(uint32_t i, uint8_t vi, uint32_t k, uint8_t vk)
{
    row r = {{0}};
    r.value[i] = vi;
    r.value[k] = vk;
    return is_allowed(&r);
}

static uint32_t count_new_pairs(const array *a, const row *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SETTINGS; i++) {
        for (uint32_t k = i + 1; k < N_SETTINGS; k++) {
            n += !a->covered[i][k][r->value[i]][r->value[k]];
        }
    }
    return n;
}

static void add_row(array *a, const row *r)
{
    assert_true(a->n_rows < sizeof a->rows / sizeof a->rows[0]);
    a->rows[a->n_rows++] = *r;
    for (uint32_t i = 0; i < N_SETTINGS; i++) {
        for (uint32_t k = i + 1; k < N_SETTINGS; k++) {
            a->covered[i][k][r->value[i]][r->value[k]] = true;
        }
    }
}

static void draw_row(array *a, row *r)
{
    for (uint32_t i = 0; i < N_SETTINGS; i++) {
        a->dice = a->dice * 1664525u + 1013904223u;
        r->value[i] = (uint8_t)((a->dice >> 10) % a->n_values[i]);
    }
}

/* The best of many rows drawn at random, that hold a pair which is not covered yet. */
static void cover_pair(array *a, uint32_t i, uint8_t vi, uint32_t k, uint8_t vk)
{
    row best = {{0}};
    uint32_t best_n = 0;
    for (int tries = 0; tries < 300 || best_n == 0; tries++) {
        row r;
        draw_row(a, &r);
        r.value[i] = vi;
        r.value[k] = vk;
        if (!is_allowed(&r)) {
            r.value[POLICY] = r.value[PREFETCH] = 0;
            r.value[i] = vi;
            r.value[k] = vk;
        }
        uint32_t n = is_allowed(&r) ? count_new_pairs(a, &r) : 0;
        if (n > best_n) {
            best_n = n;
            best = r;
        }
    }
    add_row(a, &best);
}

static void make_design(array *a)
{
    a->dice = 1;
    collect_values(a);
    for (uint32_t i = 0; i < N_SETTINGS; i++) {
        for (uint32_t k = i + 1; k < N_SETTINGS; k++) {
            for (uint8_t vi = 0; vi < a->n_values[i]; vi++) {
                for (uint8_t vk = 0; vk < a->n_values[k]; vk++) {
                    if (!a->covered[i][k][vi][vk] && pair_is_allowed(i, vi, k, vk)) {
                        cover_pair(a, i, vi, k, vk);
                    }
                }
            }
        }
    }
}

static void describe(const row *r, char *text, size_t size)
{
    size_t n = 0;
    for (uint32_t i = 0; i < N_SETTINGS && n < size; i++) {
        n += (size_t)snprintf(text + n, size - n, "%s=%u ", setting_names[i], r->value[i]);
    }
}

static moe_engine_options row_options(const array *a, const row *r)
{
    moe_engine_options o;
    moe_engine_options_init(&o);
    o.model_path = model_path;
    o.context = 128;
    o.n_threads = threads_of[r->value[THREADS]];
    lab_of(&o)->kernels = kernels_of[r->value[KERNELS]];
    o.expert_cache_share = share_of[r->value[SHARE]];
    o.io = io_of[r->value[IO]];
    o.buffered_io = r->value[BUFFERED] != 0;
    lab_of(&o)->per_layer_cache = r->value[PER_LAYER] != 0;
    o.prefill_chunk = chunk_of[r->value[CHUNK]];
    o.panel = panel_of[r->value[PANEL]];
    lab_of(&o)->offload = offload_of[r->value[OFFLOAD]];
    if (r->value[OFFLOAD] == 0) {
        o.policy = a->policies[r->value[POLICY]];
        o.prefetch = r->value[PREFETCH] == 0 ? MOE_SWITCH_OFF : MOE_SWITCH_ON;
    }
    return o;
}

/* Greedy tokens of one session in company, and its last logits. */
static void run(moe_engine *engine, uint32_t n_neighbours, result *out)
{
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    moe_session *sessions[MAX_NEIGHBOURS + 1];
    int32_t prompt[N_PROMPT];
    for (uint32_t i = 0; i <= n_neighbours; i++) {
        make_prompt(prompt, N_PROMPT, info.n_vocab, 1 + i);
        sessions[i] = greedy_session(engine);
        feed(sessions[i], prompt, i == 0 ? N_PROMPT : 3 * i);
    }
    for (size_t n = 0; n < N_DECODE;) {
        moe_error error;
        if (moe_step(engine, sessions, n_neighbours + 1, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
        n += moe_session_take(sessions[0], out->tokens + n, N_DECODE - n);
    }
    out->logits = malloc(info.n_vocab * sizeof(float));
    memcpy(out->logits, moe_session_logits(sessions[0]), info.n_vocab * sizeof(float));
    for (uint32_t i = 0; i <= n_neighbours; i++) {
        moe_session_close(&sessions[i]);
    }
}

/* A cache of 13 % may be below the experts of one token: the least that works is taken then. Models
 * and modes that cannot have panels say so. */
static moe_engine *open_row(const array *a, const row *r)
{
    moe_engine_options options = row_options(a, r);
    moe_error error;
    moe_engine *engine = NULL;
    int status = moe_engine_open(&engine, &options, &error);
    while ((status == MOE_ERR_BUDGET && options.expert_cache_share < 0.6) ||
           (status == MOE_ERR_UNSUPPORTED && options.panel > 0)) {
        options.expert_cache_share += status == MOE_ERR_BUDGET ? 0.05 : 0;
        options.panel = status == MOE_ERR_UNSUPPORTED ? 0 : options.panel;
        status = moe_engine_open(&engine, &options, &error);
    }
    if (status != MOE_OK) {
        char text[256];
        describe(r, text, sizeof text);
        fail_msg("%s: %s", text, error.message);
    }
    return engine;
}

static void every_pair(void **state)
{
    (void)state;
    make_design(&design);
    const row plain = {{[SHARE] = 4, [THREADS] = 1, [KERNELS] = 2, [CHUNK] = 1}};
    result expected;
    moe_engine *engine = open_row(&design, &plain);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    run(engine, 0, &expected);
    moe_engine_close(&engine);
    for (size_t i = 0; i < design.n_rows; i += every) {
        const row *r = &design.rows[i];
        result got;
        engine = open_row(&design, r);
        run(engine, neighbours_of[r->value[NEIGHBOURS]], &got);
        moe_engine_close(&engine);
        if (memcmp(got.tokens, expected.tokens, sizeof got.tokens) != 0 ||
            memcmp(got.logits, expected.logits, info.n_vocab * sizeof(float)) != 0) {
            char text[256];
            describe(r, text, sizeof text);
            fail_msg("differs: %s", text);
        }
        free(got.logits);
    }
    print_message("%zu configurations, of which one in %zu, %u policies\n", design.n_rows, every,
                  design.n_values[POLICY]);
    free(expected.logits);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_grid MODEL.gguf [EVERY]\n");
        return 2;
    }
    model_path = argv[1];
    every = argc == 3 && atoi(argv[2]) > 0 ? (size_t)atoi(argv[2]) : 1;
    if (every > 1) {
        memcpy(share_of, small_shares, sizeof share_of);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
