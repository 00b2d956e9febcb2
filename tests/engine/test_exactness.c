/* SPDX-License-Identifier: MIT */
/* The exactness contract: greedy tokens, and the bits of the logits, do not depend on threads,
 * batch neighbours, prefill chunk, kernels, or on whether the KV cache was built by a prompt, by
 * decoding, by a fork or from a file. Run on a model given by path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "engine_options.h"

#define N_PROMPT 150
#define N_DECODE 24

static const char *model_path;

/* What every configuration is held against: two threads, native kernels, chunk 64, alone. */
typedef struct reference {
    int32_t tokens[N_DECODE];
    float *logits;
    uint32_t n_vocab;
} reference;

static reference expected;

static moe_engine_options default_options(void)
{
    return fixture_options(model_path, 64, 512);
}

static void check_session(moe_engine *engine, moe_session *session, size_t n_prompt)
{
    int32_t tokens[N_DECODE];
    decode(engine, session, tokens, N_DECODE);
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    assert_int_equal(moe_session_n_tokens(session), n_prompt + N_DECODE);
    assert_memory_equal(moe_session_logits(session), expected.logits,
                        expected.n_vocab * sizeof(float));
}

static int make_reference(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    expected.n_vocab = info.n_vocab;
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, info.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, expected.tokens, N_DECODE);
    expected.logits = malloc(info.n_vocab * sizeof(float));
    memcpy(expected.logits, moe_session_logits(session), info.n_vocab * sizeof(float));
    moe_session_close(&session);
    moe_engine_close(&engine);
    bool varied = false;
    for (int i = 1; i < N_DECODE; i++) {
        varied |= expected.tokens[i] != expected.tokens[0];
    }
    assert_true(varied);
    return 0;
}

static int free_reference(void **state)
{
    (void)state;
    free(expected.logits);
    return 0;
}

static void check_options(const moe_engine_options *options)
{
    moe_engine *engine = open_engine(options);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    check_session(engine, session, N_PROMPT);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static void threads(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    for (uint32_t n = 1; n <= 5; n += 2) {
        options.n_threads = n;
        check_options(&options);
    }
}

static void kernels(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    const moe_kernels names[] = {MOE_KERNELS_REFERENCE, MOE_KERNELS_AVX2, MOE_KERNELS_AVX512};
    for (size_t i = 0; i < 3; i++) {
        lab_of(&options)->kernels = names[i];
        check_options(&options);
    }
}

static void prefill_chunks(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    const uint32_t chunks[] = {1, 7, 32, 128, 512};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        options.prefill_chunk = chunks[i];
        check_options(&options);
    }
}

/* Neighbours of other lengths join at once and leave while the session goes on. */
static void neighbours(size_t n_neighbours)
{
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    moe_session *sessions[8] = {greedy_session(engine)};
    int32_t prompt[N_PROMPT];
    for (size_t i = 0; i <= n_neighbours; i++) {
        if (i > 0) {
            sessions[i] = greedy_session(engine);
        }
        make_prompt(prompt, N_PROMPT, expected.n_vocab, 1 + (uint32_t)i);
        feed(sessions[i], prompt, i == 0 ? N_PROMPT : 5 + 17 * i);
    }
    int32_t tokens[N_DECODE];
    size_t n_taken = 0;
    size_t n_active = n_neighbours + 1;
    for (size_t step = 0; n_taken < N_DECODE; step++) {
        assert_int_equal(moe_step(engine, sessions, n_active, NULL), MOE_OK);
        n_taken += moe_session_take(sessions[0], tokens + n_taken, N_DECODE - n_taken);
        if (step % 4 == 3 && n_active > 1) {
            moe_session_close(&sessions[--n_active]);
        }
    }
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    while (n_active > 0) {
        moe_session_close(&sessions[--n_active]);
    }
    moe_engine_close(&engine);
}

static void batch_neighbours(void **state)
{
    (void)state;
    neighbours(1);
    neighbours(7);
}

/* The generated tokens, taken back and fed as a prompt, are evaluated in one pass instead of one by
 * one; what follows must not change. */
static void recomputed(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    int32_t tokens[N_DECODE];
    decode(engine, session, tokens, 10);
    for (size_t keep = 0; keep <= N_PROMPT; keep += 50) {
        assert_int_equal(moe_session_truncate(session, keep, NULL), MOE_OK);
        feed(session, prompt + keep, N_PROMPT - keep);
        feed(session, expected.tokens, 7);
        decode(engine, session, tokens, N_DECODE - 7);
        assert_memory_equal(tokens, expected.tokens + 7, (N_DECODE - 7) * sizeof *tokens);
        assert_memory_equal(moe_session_logits(session), expected.logits,
                            expected.n_vocab * sizeof(float));
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static void forked(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT - 20);
    int32_t other[8];
    decode(engine, session, other, 1);
    assert_int_equal(moe_session_truncate(session, N_PROMPT - 20, NULL), MOE_OK);
    moe_session *fork = NULL;
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    decode(engine, session, other, 8); /* writes to the pages that both share */
    feed(fork, prompt + N_PROMPT - 20, 20);
    moe_session_close(&session);
    check_session(engine, fork, N_PROMPT);
    moe_session_close(&fork);
    moe_engine_close(&engine);
}

static moe_session *save_and_load(moe_session **session, moe_engine *to)
{
    char path[] = "/tmp/moe-session-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    moe_session *loaded = NULL;
    assert_int_equal(moe_session_save(*session, path, NULL), MOE_OK);
    moe_session_close(session);
    assert_int_equal(moe_session_load(&loaded, to, path, NULL), MOE_OK);
    unlink(path);
    return loaded;
}

/* While it writes; loaded by an engine with other threads and chunks. */
static void saved_and_loaded(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    int32_t tokens[N_DECODE];
    decode(engine, session, tokens, 9);
    options.n_threads = 1;
    options.prefill_chunk = 17;
    moe_engine *other = open_engine(&options);
    session = save_and_load(&session, other);
    moe_engine_close(&engine);
    decode(other, session, tokens + 9, N_DECODE - 9);
    assert_memory_equal(tokens, expected.tokens, sizeof tokens);
    assert_memory_equal(moe_session_logits(session), expected.logits,
                        expected.n_vocab * sizeof(float));
    moe_session_close(&session);
    moe_engine_close(&other);
}

/* Within the prompt: at the borders of pages and elsewhere, with and without tokens that wait; what
 * was loaded is forked and cut back, and both go on to the same text. */
static void saved_anywhere(void **state)
{
    (void)state;
    static const uint32_t positions[] = {1, 2, 13, 63, 64, 65, 100, 127, 128, 129, N_PROMPT - 1};
    moe_engine_options options = default_options();
    moe_engine *engine = open_engine(&options);
    int32_t prompt[N_PROMPT];
    make_prompt(prompt, N_PROMPT, expected.n_vocab, 1);
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        uint32_t at = positions[i];
        moe_session *session = greedy_session(engine);
        feed(session, prompt, at);
        int32_t written;
        decode(engine, session, &written, 1);
        assert_int_equal(moe_session_truncate(session, at, NULL), MOE_OK);
        feed(session, prompt + at, i % 2 * (N_PROMPT - at));
        session = save_and_load(&session, engine);
        feed(session, prompt + at, (1 - i % 2) * (N_PROMPT - at));
        moe_session *fork = NULL;
        assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
        check_session(engine, session, N_PROMPT);
        uint32_t kept = at - at / 3;
        assert_int_equal(moe_session_truncate(fork, kept, NULL), MOE_OK);
        feed(fork, prompt + kept, N_PROMPT - kept);
        check_session(engine, fork, N_PROMPT);
        moe_session_close(&fork);
        moe_session_close(&session);
    }
    moe_engine_close(&engine);
}

/* The least cache that is accepted, and shares of the experts; with and without prefetch. */
static void cache_sizes(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    moe_memory_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
    const double shares[] = {0.05, 0.1, 0.25, 0.5, 1.0};
    size_t n_ran = 0;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        options.expert_cache_share = shares[i];
        for (int prefetch = MOE_SWITCH_ON; prefetch <= MOE_SWITCH_OFF; prefetch++) {
            options.prefetch = (moe_switch)prefetch;
            int status = moe_plan_memory(&options, &plan, NULL);
            if (status == MOE_OK) {
                check_options(&options);
                n_ran++;
            } else {
                assert_int_equal(status, MOE_ERR_BUDGET);
            }
        }
    }
    assert_true(n_ran >= 4);
}

static void policies(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    options.expert_cache_share = 0.5;
    const char *const names[] = {"lru", "lfu", "lfru"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        options.policy = names[i];
        for (int per_layer = 0; per_layer <= 1; per_layer++) {
            lab_of(&options)->per_layer_cache = per_layer != 0;
            check_options(&options);
        }
    }
}

static void io_engines(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    options.expert_cache_share = 0.5;
    const moe_io_kind names[] = {MOE_IO_AUTO, MOE_IO_URING, MOE_IO_THREADS, MOE_IO_SYNC};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        options.io = names[i];
        for (int buffered = 0; buffered <= 1; buffered++) {
            options.buffered_io = buffered != 0;
            check_options(&options);
        }
    }
}

static void on_demand(void **state)
{
    (void)state;
    moe_engine_options options = default_options();
    lab_of(&options)->offload = MOE_OFFLOAD_ON_DEMAND;
    check_options(&options);
    options.expert_cache_share = 0.5;
    check_options(&options);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_exactness MODEL.gguf [short]\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest few_tests[] = {
        cmocka_unit_test(batch_neighbours),
        cmocka_unit_test(forked),
        cmocka_unit_test(cache_sizes),
    };
    if (argc == 3) {
        return cmocka_run_group_tests(few_tests, make_reference, free_reference);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),          cmocka_unit_test(kernels),
        cmocka_unit_test(prefill_chunks),   cmocka_unit_test(batch_neighbours),
        cmocka_unit_test(recomputed),       cmocka_unit_test(forked),
        cmocka_unit_test(saved_and_loaded), cmocka_unit_test(saved_anywhere),
        cmocka_unit_test(cache_sizes),      cmocka_unit_test(policies),
        cmocka_unit_test(io_engines),       cmocka_unit_test(on_demand),
    };
    return cmocka_run_group_tests(tests, make_reference, free_reference);
}
