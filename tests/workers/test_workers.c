/* SPDX-License-Identifier: MIT */
/* Engines with workers over a network in one process (wire_double.h): the same text with any number
 * of workers, and whatever becomes of messages and workers on the way. Argument: the oracle's
 * folder. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <moe/workers.h>

#include "runtime/engine/engine_parts.h"
#include "tests/engine/engine_fixture.h"
#include "tests/test_size.h"
#include "tests/workers/wire_double.h"

enum { N_PROMPT = 20, N_LONG = 150, N_WRITTEN = 24 };

static const char *oracle_folder;

/* ---- Workers on threads ---- */

typedef struct worker_thread {
    moe_engine *engine;
    moe_wire *wire;
    moe_worker_options options;
    atomic_bool stops;
    pthread_t thread;
    int status;
    moe_error error;
} worker_thread;

static bool is_stopped(void *user)
{
    return atomic_load((atomic_bool *)user);
}

static void *work(void *arg)
{
    worker_thread *w = arg;
    w->status = moe_engine_serve_wire(w->engine, &w->options, w->wire, &w->error);
    return NULL;
}

static void start_worker(worker_thread *w, net *n, uint32_t i, const char *model, uint32_t share,
                         uint32_t n_shares)
{
    char path[1024];
    moe_engine_options options = oracle_options(path, oracle_folder, model);
    options.experts_only = true;
    options.n_threads = 1;
    options.prefill_chunk = 8 + 8 * i; /* prompts come in several jobs */
    *w = (worker_thread){.engine = open_engine(&options), .wire = net_worker(n, i)};
    moe_worker_options_init(&w->options);
    w->options.share = share;
    w->options.n_shares = n_shares;
    w->options.is_stopped = is_stopped;
    w->options.user = &w->stops;
    assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
}

static void stop_worker(worker_thread *w)
{
    atomic_store(&w->stops, true);
    w->wire->ops->wake(w->wire);
    pthread_join(w->thread, NULL);
    assert_int_equal(w->status, MOE_OK);
    moe_engine_close(&w->engine);
}

/* ---- Texts ---- */

typedef struct setting {
    const char *model;
    moe_speculate speculate;
    double cache; /* share of the experts */
    uint32_t n_sequences;
    uint32_t n_prompt; /* tokens; 0: N_PROMPT */
    uint32_t chunk;    /* 0: the whole prompt is a chunk */
    uint32_t panel;    /* rows of a panel; 1: none */
    bool reads_ahead;
} setting;

static uint32_t prompt_of(const setting *s)
{
    return s->n_prompt != 0 ? s->n_prompt : N_PROMPT;
}

static moe_engine *open_setting(const setting *s)
{
    char path[1024];
    moe_engine_options options = oracle_options(path, oracle_folder, s->model);
    options.speculate = s->speculate;
    options.expert_cache_share = s->cache;
    options.prefetch = s->reads_ahead ? MOE_SWITCH_ON : MOE_SWITCH_OFF;
    options.prefill_chunk = s->chunk != 0 ? s->chunk : options.prefill_chunk;
    options.panel = s->panel != 0 ? s->panel : options.panel;
    options.warm_start = MOE_SWITCH_OFF;
    return open_engine(&options);
}

static int join(moe_engine *engine, net *n, uint32_t n_workers, bool all, double timeout,
                moe_error *error)
{
    static const char *const addresses[] = {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3",
                                            "127.0.0.1:4"};
    const moe_engine_options options = {.workers = addresses,
                                        .n_workers = n_workers,
                                        .worker_compute = all ? MOE_SWITCH_ON : MOE_SWITCH_AUTO,
                                        .worker_timeout = timeout};
    return moe_engine_join_workers(engine, &options, net_coordinator(n), 1000000, error);
}

/* Writes the sequences together. */
static void write_texts(moe_engine *engine, const setting *s, int32_t *out)
{
    moe_session *sessions[4];
    moe_engine_info info = {.struct_size = sizeof info};
    const uint32_t n_prompt = prompt_of(s);
    int32_t prompt[N_LONG];
    assert_true(n_prompt <= N_LONG);
    moe_engine_get_info(engine, &info);
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        make_prompt(prompt, n_prompt, info.n_vocab, i);
        sessions[i] = greedy_session(engine);
        feed(sessions[i], prompt, n_prompt);
    }
    for (bool written = false; !written;) {
        moe_error error;
        if (moe_step(engine, sessions, s->n_sequences, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
        written = true;
        for (uint32_t i = 0; i < s->n_sequences; i++) {
            written = written && moe_session_n_tokens(sessions[i]) >= n_prompt + N_WRITTEN;
        }
    }
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        memcpy(out + i * N_WRITTEN, moe_session_tokens(sessions[i]) + n_prompt,
               N_WRITTEN * sizeof *out);
        moe_session_close(&sessions[i]);
    }
}

static moe_engine_stats stats_of(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    return stats;
}

/* With 1 to 3 workers that have a part each, and, at the last, the whole. */
static void check_setting(const setting *s)
{
    int32_t expected[4 * N_WRITTEN], out[4 * N_WRITTEN];
    worker_thread workers[3];
    moe_engine *engine = open_setting(s);
    write_texts(engine, s, expected);
    moe_engine_close(&engine);
    for (uint32_t n_workers = 1; n_workers <= 3; n_workers++) {
        net *n = net_open(n_workers, n_workers);
        for (uint32_t i = 0; i < n_workers; i++) {
            bool whole = n_workers == 3;
            start_worker(&workers[i], n, i, s->model, whole ? 0 : i + 1, whole ? 0 : 2);
        }
        for (int all = 0; all < 2; all++) {
            moe_error error;
            engine = open_setting(s);
            if (join(engine, n, n_workers, all, 120.0, &error) != MOE_OK) {
                fail_msg("%s", error.message);
            }
            write_texts(engine, s, out);
            assert_memory_equal(out, expected, s->n_sequences * N_WRITTEN * sizeof *out);
            moe_engine_stats stats = stats_of(engine);
            assert_int_equal(stats.workers_ready, n_workers);
            assert_int_equal(stats.workers_lost, 0);
            if (all) {
                assert_true(stats.worker_experts > 0);
                /* With two halves or more workers nothing is left to read here. */
                assert_true(n_workers == 1 || stats.bytes_read_disk == 0);
            }
            moe_engine_close(&engine);
        }
        for (uint32_t i = 0; i < n_workers; i++) {
            stop_worker(&workers[i]);
        }
        net_close(&n);
    }
}

static void the_text_is_the_same(void **state)
{
    (void)state;
    static const setting settings[] = {
        {.model = "olmoe-q8_0", .cache = 0.5, .n_sequences = 1},
        {.model = "olmoe-q8_0",
         .speculate = MOE_SPECULATE_SELF,
         .cache = 0.5,
         .n_sequences = 4,
         .reads_ahead = true}, /* with all experts at workers, nothing is read ahead */
        {.model = "gpt-oss", .cache = 0.5, .n_sequences = 2},      /* biases */
        {.model = "llama4", .cache = 0.5, .n_sequences = 2},       /* weights scale inputs */
        {.model = "deepseek2-v3", .cache = 0.5, .n_sequences = 1}, /* layers without experts */
        {.model = "qwen4exp", .cache = 0.5, .n_sequences = 2},
        {.model = "deepseek4", .cache = 0.5, .n_sequences = 2}, /* chosen by a table */
    };
    size_t n = test_is_small() ? 3 : sizeof settings / sizeof settings[0];
    for (size_t i = 0; i < n; i++) {
        check_setting(&settings[i]);
    }
}

/* ---- Panels ---- */

/* The prompt is longer than a chunk. */
static const setting panel_settings[] = {
    {.model = "olmoe-q8_0", .cache = 0.4, .n_sequences = 2, .panel = 400},
    {.model = "olmoe-q8_0", .cache = 0.7, .n_sequences = 1, .panel = 400, .reads_ahead = true},
    {.model = "gpt-oss", .cache = 0.4, .n_sequences = 1, .panel = 400},
    {.model = "llama4", .cache = 0.4, .n_sequences = 1, .panel = 400},
    {.model = "deepseek2-v3", .cache = 0.4, .n_sequences = 1, .panel = 400},
    {.model = "qwen3moe", .cache = 0.4, .n_sequences = 2, .panel = 400},
    /* As many jobs under way as places. */
    {.model = "olmoe-q8_0", .cache = 0.4, .n_sequences = 1, .panel = 400, .chunk = 1},
};

/* Writes texts with workers, and returns what was read for them. */
static uint64_t write_with(const setting *s, net *n, uint32_t n_workers, bool all,
                           const int32_t *expected)
{
    int32_t out[4 * N_WRITTEN];
    moe_error error;
    moe_engine *engine = open_setting(s);
    if (join(engine, n, n_workers, all, 120.0, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    write_texts(engine, s, out);
    assert_memory_equal(out, expected, s->n_sequences * N_WRITTEN * sizeof *out);
    moe_engine_stats stats = stats_of(engine);
    assert_int_equal(stats.workers_lost, 0);
    assert_true(!all || stats.worker_experts > 0);
    moe_engine_close(&engine);
    return stats.bytes_read_disk;
}

static void check_panel(setting s)
{
    int32_t expected[4 * N_WRITTEN];
    worker_thread workers[2];
    setting plain = s;
    s.n_prompt = plain.n_prompt = N_LONG;
    s.chunk = plain.chunk = s.chunk != 0 ? s.chunk : 16;
    plain.panel = 1;
    moe_engine *engine = open_setting(&plain);
    write_texts(engine, &plain, expected);
    moe_engine_close(&engine);
    net *n = net_open(2, 1);
    for (uint32_t i = 0; i < 2; i++) {
        start_worker(&workers[i], n, i, s.model, i + 1, 2);
    }
    /* A worker has one half of the experts. The other is read once for all rows of a panel. */
    const uint64_t by_chunks = write_with(&plain, n, 1, true, expected);
    const uint64_t by_panel = write_with(&s, n, 1, true, expected);
    assert_true(by_panel < by_chunks || s.cache > 0.5);
    (void)write_with(&s, n, 1, false, expected);
    /* Two workers have all. */
    assert_int_equal(write_with(&s, n, 2, true, expected), 0);
    for (uint32_t i = 0; i < 2; i++) {
        stop_worker(&workers[i]);
    }
    net_close(&n);
}

static void panels_are_the_same(void **state)
{
    (void)state;
    const size_t n = sizeof panel_settings / sizeof panel_settings[0];
    for (size_t i = 0; i < (test_is_small() ? 1 : n); i++) {
        check_panel(panel_settings[i]);
    }
}

/* ---- Faults ---- */

/* Runs with faults until so many workers have died. */
static void check_faults(setting s, const net_faults *faults, uint64_t seed, uint64_t n_kills)
{
    int32_t expected[4 * N_WRITTEN], out[4 * N_WRITTEN];
    worker_thread workers[3];
    net *n = net_open(3, seed);
    moe_engine *engine = open_setting(&s);
    write_texts(engine, &s, expected);
    for (uint32_t i = 0; i < 3; i++) {
        start_worker(&workers[i], n, i, s.model, i < 2 ? i + 1 : 0, i < 2 ? 2 : 0);
    }
    moe_error error;
    assert_int_equal(join(engine, n, 3, true, 0.02, &error), MOE_OK);
    net_set_faults(n, faults);
    for (uint64_t runs = 0; runs < 3 || net_get_counts(n).n_kills < n_kills; runs++) {
        write_texts(engine, &s, out);
        assert_memory_equal(out, expected, s.n_sequences * N_WRITTEN * sizeof *out);
    }
    /* Without faults they come back. */
    net_set_faults(n, &(net_faults){0});
    for (int tries = 0; stats_of(engine).workers_ready < 3; tries++) {
        assert_true(tries < 10000);
        write_texts(engine, &s, out);
        assert_memory_equal(out, expected, s.n_sequences * N_WRITTEN * sizeof *out);
    }
    moe_engine_close(&engine);
    for (uint32_t i = 0; i < 3; i++) {
        stop_worker(&workers[i]);
    }
    net_close(&n);
}

static void faults_change_no_text(void **state)
{
    (void)state;
    const setting s = {.model = "olmoe-q8_0", .cache = 0.5, .n_sequences = 2};
    setting panel = panel_settings[0];
    panel.n_prompt = N_LONG;
    panel.chunk = 16;
    check_faults(s, &(net_faults){.flips = 50, .doubles = 20, .late = 10, .losses = 400}, 1, 0);
    check_faults(s, &(net_faults){.kills = 20}, 2, test_is_small() ? 50 : 1000);
    check_faults(s, &(net_faults){.kills = 60, .flips = 90, .doubles = 30, .late = 30}, 3,
                 test_is_small() ? 10 : 100);
    check_faults(panel, &(net_faults){.kills = 60, .flips = 90, .doubles = 30, .late = 30}, 4,
                 test_is_small() ? 10 : 60);
    /* Half of a pass's outputs are no whole windows, and windows are done out of turn. */
    panel.chunk = 13;
    check_faults(panel, &(net_faults){.late = 2}, 6, 0);
}

/* ---- Dividing experts anew ---- */

static uint64_t held_by(const moe_engine *engine, uint32_t n_workers)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_workers; i++) {
        moe_worker_info info = {.struct_size = sizeof info};
        assert_int_equal(moe_engine_get_worker(engine, i, &info, NULL), MOE_OK);
        assert_int_equal(info.ready, 1);
        n += info.experts;
    }
    return n;
}

/* A quarter of the experts is with a worker and the rest with nobody, until they are divided. */
static void experts_move_to_workers(void **state)
{
    (void)state;
    const setting s = {.model = "olmoe-q8_0", .cache = 0.5, .n_sequences = 2};
    int32_t expected[4 * N_WRITTEN], out[4 * N_WRITTEN];
    worker_thread workers[2];
    moe_engine *engine = open_setting(&s);
    moe_engine_info info = {.struct_size = sizeof info};
    write_texts(engine, &s, expected);
    moe_engine_get_info(engine, &info);
    const uint64_t n_experts = info.memory.experts;
    net *n = net_open(2, 1);
    for (uint32_t i = 0; i < 2; i++) {
        start_worker(&workers[i], n, i, s.model, i + 1, 8);
    }
    moe_error error;
    assert_int_equal(join(engine, n, 2, true, 120.0, &error), MOE_OK);
    assert_int_equal(held_by(engine, 2), n_experts / 4);
    write_texts(engine, &s, out);
    assert_memory_equal(out, expected, s.n_sequences * N_WRITTEN * sizeof *out);
    moe_engine_close(&engine);

    engine = open_setting(&s);
    const moe_engine_options options = {.workers =
                                            (const char *const[]){"127.0.0.1:1", "127.0.0.1:2"},
                                        .n_workers = 2,
                                        .worker_compute = MOE_SWITCH_ON,
                                        .worker_rebalance = 8,
                                        .worker_timeout = 120.0};
    assert_int_equal(moe_engine_join_workers(engine, &options, net_coordinator(n), 1000000, &error),
                     MOE_OK);
    /* Both have memory for all experts, so in the end each has every expert that is asked for. */
    for (int tries = 0; held_by(engine, 2) < n_experts; tries++) {
        assert_true(tries < 1000);
        write_texts(engine, &s, out);
        assert_memory_equal(out, expected, s.n_sequences * N_WRITTEN * sizeof *out);
    }
    assert_int_equal(stats_of(engine).workers_lost, 0);
    moe_engine_close(&engine);
    for (uint32_t i = 0; i < 2; i++) {
        stop_worker(&workers[i]);
    }
    net_close(&n);
}

/* ---- Refusals ---- */

static void another_model_or_key_is_refused(void **state)
{
    (void)state;
    const setting s = {.model = "olmoe-q8_0", .cache = 0.5, .n_sequences = 1};
    moe_error error = {""};
    worker_thread worker;
    net *n = net_open(1, 7);
    start_worker(&worker, n, 0, "gpt-oss", 0, 0);
    moe_engine *engine = open_setting(&s);
    assert_int_equal(join(engine, n, 1, true, 120.0, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "127.0.0.1:1"));
    assert_non_null(strstr(error.message, "another model"));
    stop_worker(&worker);
    net_close(&n);

    static const uint8_t key[] = "a key of some bytes";
    n = net_open(1, 8);
    start_worker(&worker, n, 0, s.model, 0, 0);
    static const char *const address = "127.0.0.1:1";
    const moe_engine_options options = {
        .workers = &address, .n_workers = 1, .worker_key = key, .worker_key_bytes = sizeof key};
    assert_int_equal(moe_engine_join_workers(engine, &options, net_coordinator(n), 0, &error),
                     MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "options.worker_key"));
    stop_worker(&worker);
    net_close(&n);

    /* Nobody there is no error: the text is written here. */
    int32_t out[N_WRITTEN];
    n = net_open(0, 9);
    assert_int_equal(join(engine, n, 1, true, 120.0, &error), MOE_OK);
    write_texts(engine, &s, out);
    assert_int_equal(stats_of(engine).workers_ready, 0);
    moe_engine_close(&engine);
    net_close(&n);
}

static void a_worker_has_no_sessions(void **state)
{
    (void)state;
    char path[1024];
    moe_session *session;
    moe_error error;
    moe_engine_options options = oracle_options(path, oracle_folder, "olmoe-q8_0");
    options.experts_only = true;
    moe_engine *engine = open_engine(&options);
    moe_session_options of_session;
    moe_session_options_init(&of_session);
    assert_int_equal(moe_session_create(&session, engine, &of_session, &error),
                     MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "experts_only"));
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    assert_int_equal(info.memory.resident, 0);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        return 77;
    }
    oracle_folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_the_same),
        cmocka_unit_test(panels_are_the_same),
        cmocka_unit_test(faults_change_no_text),
        cmocka_unit_test(experts_move_to_workers),
        cmocka_unit_test(another_model_or_key_is_refused),
        cmocka_unit_test(a_worker_has_no_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
