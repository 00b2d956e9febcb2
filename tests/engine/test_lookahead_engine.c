/* SPDX-License-Identifier: MIT */
/* Lookahead in the engine: the text stays, nothing moves for it, the cache misses less, and the
 * simulator repeats a recorded run to the hit. With slow reads, the draft runs while passes wait.
 * Usage: test_lookahead_engine MODEL [RECURRENT-MODEL...] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <moe/lab.h>
#include <moe/trace.h>

#include "engine_fixture.h"
#include "engine_options.h"
#include "tests/test_size.h"

enum { N_PROMPT = 24, N_WRITTEN = 90 };

static const char *model_path;
static char **recurrent_paths; /* [n_recurrent] models with recurrent layers */
static int n_recurrent;
static _Atomic long read_delay_ns; /* of every read of a file */

/* In place of the C library's. */
ssize_t pread(int fd, void *buffer, size_t size, off_t offset);
ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
    struct timespec delay = {.tv_nsec = read_delay_ns};
    if (delay.tv_nsec > 0) {
        nanosleep(&delay, NULL);
    }
    return syscall(SYS_pread64, fd, buffer, size, offset);
}

/* The draft runs before each pass, so that runs repeat themselves. */
static moe_engine_options options_of(double share, uint32_t lookahead)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.context = 256;
    options.prefill_chunk = 16;
    options.panel = 1; /* lookahead has none either, and the simulator replays passes */
    options.expert_cache_share = share;
    options.lookahead = lookahead;
    options.prefetch = MOE_SWITCH_OFF;
    options.warm_start = MOE_SWITCH_OFF;
    options.buffered_io = true;
    options.io = MOE_IO_THREADS; /* which calls pread() */
    lab_of(&options)->lookahead_overlap = MOE_SWITCH_OFF;
    return options;
}

typedef struct writing {
    int32_t tokens[3][N_WRITTEN];
    moe_engine_stats stats;
    uint64_t expert_bytes;
} writing;

static moe_session *writer(moe_engine *engine, float temperature, uint64_t seed)
{
    moe_session_options options;
    moe_session *session = NULL;
    moe_session_options_init(&options);
    options.sampling.temperature = temperature;
    options.sampling.seed = seed;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    return session;
}

static void read_back(const moe_session *session, int32_t *out)
{
    assert_true(moe_session_n_tokens(session) >= N_PROMPT + N_WRITTEN);
    memcpy(out, moe_session_tokens(session) + N_PROMPT, N_WRITTEN * sizeof *out);
}

static void steps(moe_engine *engine, moe_session **sessions, size_t n, int count)
{
    for (int i = 0; i < count; i++) {
        moe_error error;
        if (moe_step(engine, sessions, n, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
    }
}

static bool is_done(moe_session **sessions, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (moe_session_n_tokens(sessions[i]) < N_PROMPT + N_WRITTEN) {
            return false;
        }
    }
    return true;
}

/* Two sessions that write together, one at temperature 0, and from the middle on a third: a fork of
 * the first that is cut back by three tokens and is given one of them again. */
static writing write_texts(const moe_engine_options *options)
{
    static writing w;
    memset(&w, 0, sizeof w);
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    w.expert_bytes = info.expert_bytes / info.memory.experts;
    moe_session *sessions[3] = {writer(engine, 0, 1), writer(engine, 0.9f, 2), NULL};
    int32_t prompt[N_PROMPT];
    for (uint32_t i = 0; i < 2; i++) {
        make_prompt(prompt, N_PROMPT, info.n_vocab, 1 + i);
        feed(sessions[i], prompt, N_PROMPT);
    }
    size_t n = 2;
    for (int step = 0; n < 3 || !is_done(sessions, n); step++) {
        assert_true(step < 300);
        if (n == 2 && step >= 40) {
            assert_int_equal(moe_session_fork(&sessions[2], sessions[0], NULL), MOE_OK);
            size_t length = moe_session_n_tokens(sessions[2]);
            int32_t token = moe_session_tokens(sessions[2])[length - 3];
            assert_int_equal(moe_session_truncate(sessions[2], length - 3, NULL), MOE_OK);
            feed(sessions[2], &token, 1);
            n = 3;
        }
        steps(engine, sessions, n, 1);
    }
    w.stats.struct_size = sizeof w.stats;
    moe_engine_get_stats(engine, &w.stats);
    for (size_t i = 0; i < 3; i++) {
        read_back(sessions[i], w.tokens[i]);
        moe_session_close(&sessions[i]);
    }
    moe_engine_close(&engine);
    return w;
}

static void test_same_text(void **state)
{
    (void)state;
    moe_engine_options options = options_of(0.3, 0);
    writing plain = write_texts(&options);
    assert_memory_equal(plain.tokens[0], plain.tokens[2], sizeof plain.tokens[0]);
    const double shares[] = {0.1, 0.4};
    const uint32_t lookaheads[] = {1, 6};
    for (size_t s = 0; s < 2; s++) {
        for (size_t l = 0; l < 2; l++) {
            for (int ngram = 0; ngram < 2; ngram++) {
                if (test_is_small() && (s != l || (size_t)ngram != l)) {
                    continue;
                }
                options = options_of(shares[s], lookaheads[l]);
                options.speculate = ngram == 1 ? MOE_SPECULATE_NGRAM : MOE_SPECULATE_OFF;
                options.n_threads = 1 + (uint32_t)(l % 2);
                writing ahead = write_texts(&options);
                assert_memory_equal(ahead.tokens, plain.tokens, sizeof plain.tokens);
                assert_true(ahead.stats.speculation.lookahead_passes > 0);
                assert_int_equal(ahead.stats.bytes_prefetch, 0);
                assert_int_equal(ahead.stats.bytes_demand,
                                 ahead.stats.expert_misses * ahead.expert_bytes);
            }
        }
    }
}

/* The draft runs while passes wait for slow reads; with prefetch, experts that it names are read
 * ahead. Where nothing is waited for, nothing is drafted. */
static void test_overlapping(void **state)
{
    (void)state;
    moe_engine_options options = options_of(0.3, 0);
    writing plain = write_texts(&options);
    uint64_t n_passes = 0, n_named = 0, hidden_ns = 0;
    for (int i = 0; i < 4; i++) {
        if (test_leaves_out((uint32_t)i, 3)) {
            continue;
        }
        options = options_of(i < 2 ? 0.15 : 0.4, 7);
        options.prefetch = i % 2 == 0 ? MOE_SWITCH_OFF : MOE_SWITCH_ON;
        options.speculate = i == 3 ? MOE_SPECULATE_NGRAM : MOE_SPECULATE_OFF;
        lab_of(&options)->lookahead_overlap = MOE_SWITCH_ON;
        options.io_depth = 1;
        read_delay_ns = 400000;
        writing ahead = write_texts(&options);
        read_delay_ns = 0;
        const moe_speculation_stats *s = &ahead.stats.speculation;
        assert_memory_equal(ahead.tokens, plain.tokens, sizeof plain.tokens);
        n_passes += s->lookahead_passes;
        n_named += s->lookahead_named;
        hidden_ns += s->lookahead_hidden_ns;
        assert_true(s->lookahead_hidden_ns <= s->lookahead_ns);
        assert_true((ahead.stats.bytes_prefetch > 0) == (i % 2 == 1));
    }
    print_message("%llu passes while waiting\n", (unsigned long long)n_passes);
    assert_true(n_passes > 0 && n_named > 0 && hidden_ns > 0);
    options = options_of(1, 7);
    lab_of(&options)->lookahead_overlap = MOE_SWITCH_ON;
    moe_engine *engine = open_engine(&options);
    moe_session *session = writer(engine, 0, 1);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, 512, 1);
    feed(session, prompt, N_PROMPT);
    steps(engine, &session, 1, 30); /* the experts come */
    moe_engine_get_stats(engine, &stats);
    uint64_t before = stats.speculation.lookahead_passes + stats.expert_misses;
    feed(session, prompt, 1);
    moe_engine_get_stats(engine, &stats);
    assert_true(stats.speculation.lookahead_passes + stats.expert_misses == before);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* What one session writes alone, recorded; NULL: not recorded. */
static moe_engine_stats write_alone(double share, uint32_t lookahead, char *trace_path)
{
    moe_engine_options options = options_of(share, lookahead);
    lab_of(&options)->trace_path = trace_path;
    moe_engine *engine = open_engine(&options);
    moe_session *session = writer(engine, 1, 7);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, info.n_vocab, 9);
    feed(session, prompt, N_PROMPT);
    steps(engine, &session, 1, N_WRITTEN + N_PROMPT);
    assert_true(is_done(&session, 1));
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(engine, &stats);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return stats;
}

static void test_fewer_misses(void **state)
{
    (void)state;
    for (double share = test_is_small() ? 0.5 : 0.1; share < 0.6; share += 0.2) {
        moe_engine_stats plain = write_alone(share, 0, NULL);
        moe_engine_stats ahead = write_alone(share, 5, NULL);
        const moe_speculation_stats *s = &ahead.speculation;
        print_message(
            "%.0f %%: %llu misses, %llu with lookahead; %llu of %llu tokens stood\n", 100 * share,
            (unsigned long long)plain.expert_misses, (unsigned long long)ahead.expert_misses,
            (unsigned long long)s->lookahead_stood, (unsigned long long)s->lookahead_tokens);
        assert_int_equal(plain.expert_hits + plain.expert_misses,
                         ahead.expert_hits + ahead.expert_misses);
        assert_true((double)ahead.expert_misses < 0.95 * (double)plain.expert_misses);
        assert_true(s->lookahead_used > s->lookahead_named / 2);
        assert_true(s->lookahead_stood > 0 && s->lookahead_stood < s->lookahead_tokens);
    }
}

/* Recording changes nothing, a second run is the same, and the simulator has its every hit. Returns
 * how many misses it has without lookahead. */
static uint64_t check_simulated(double share, uint32_t lookahead, moe_engine_stats *engine)
{
    char path[] = "/tmp/moe-ahead-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    *engine = write_alone(share, lookahead, path);
    moe_engine_stats again = write_alone(share, lookahead, NULL);
    assert_int_equal(engine->expert_misses, again.expert_misses);
    moe_trace_open_options open;
    moe_trace_open_options_init(&open);
    open.path = path;
    moe_trace *trace = NULL;
    moe_error err = {""};
    if (moe_trace_open(&trace, &open, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    unlink(path);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.n_slots = (uint32_t)engine->expert_slots;
    moe_simulation_result result = {.struct_size = sizeof result};
    simulation.lookahead = MOE_LOOKAHEAD_RECORDED;
    assert_int_equal(moe_simulate(trace, &simulation, &result, &err), MOE_OK);
    assert_int_equal(result.hits, engine->expert_hits);
    assert_int_equal(result.misses, engine->expert_misses);
    assert_int_equal(result.evictions, engine->expert_evictions);
    simulation.lookahead = MOE_LOOKAHEAD_NONE;
    assert_int_equal(moe_simulate(trace, &simulation, &result, &err), MOE_OK);
    moe_trace_close(&trace);
    return result.misses;
}

static void test_simulated(void **state)
{
    (void)state;
    const uint32_t lookaheads[] = {1, 4};
    for (size_t l = test_is_small() ? 1 : 0; l < 2; l++) {
        moe_engine_stats engine;
        assert_true(check_simulated(0.25, lookaheads[l], &engine) > engine.expert_misses);
    }
}

/* These models are tiny and untrained, so that a restricted draft is often wrong. */
static void test_recurrent_simulated(void **state)
{
    (void)state;
    const char *before = model_path;
    for (int i = 0; i < n_recurrent; i++) {
        moe_engine_stats engine;
        model_path = recurrent_paths[i];
        uint64_t plain = check_simulated(0.5, 4, &engine);
        print_message("%s: %llu misses, %llu with lookahead\n", model_path,
                      (unsigned long long)plain, (unsigned long long)engine.expert_misses);
        assert_true(engine.expert_misses > 0 && engine.speculation.lookahead_stood > 0);
        assert_true(engine.expert_misses != plain); /* the forecasts have moved something */
    }
    model_path = before;
}

static void refused(const moe_engine_options *options, const char *words)
{
    moe_engine *engine = NULL;
    moe_error err = {""};
    assert_int_equal(moe_engine_open(&engine, options, &err), MOE_ERR_ARGUMENT);
    if (strstr(err.message, words) == NULL) {
        fail_msg("'%s' does not say '%s'", err.message, words);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    moe_engine_options options = options_of(0.3, 17);
    refused(&options, "lookahead must be 0 (off) to 16");
    options = options_of(0.3, 3);
    options.speculate = MOE_SPECULATE_SELF;
    refused(&options, "must be MOE_SPECULATE_OFF or _NGRAM");
    options.speculate = MOE_SPECULATE_OFF;
    options.policy = "lru";
    refused(&options, "'lru' looks at the past alone");
    options.policy = NULL;
    for (int baseline = MOE_OFFLOAD_ON_DEMAND; baseline <= MOE_OFFLOAD_CACHING; baseline++) {
        lab_of(&options)->offload = (moe_offload_mode)baseline;
        refused(&options, "options.lab.offload is a baseline");
    }
    options = options_of(0.3, 0);
    lab_of(&options)->lookahead_overlap = MOE_SWITCH_ON;
    refused(&options, "acts on lookahead, which is off");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_lookahead_engine MODEL [RECURRENT-MODEL...]\n");
        return 2;
    }
    model_path = argv[1];
    recurrent_paths = argv + 2;
    n_recurrent = argc - 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_text),    cmocka_unit_test(test_overlapping),
        cmocka_unit_test(test_fewer_misses), cmocka_unit_test(test_simulated),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_recurrent_simulated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
