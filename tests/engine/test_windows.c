/* SPDX-License-Identifier: MIT */
/* Layers with a window free their pages behind it. Whatever is done to a session, the logits have
 * the bits of an engine that keeps all pages, and the pages are as many as the plan says. Usage:
 * test_windows ORACLE-FOLDER. */
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
#include "runtime/engine/engine_state.h"
#include "tests/test_size.h"

#define N_TEXT  1100u
#define CONTEXT 2048u
#define N_WRITE 300u

static const char *folder;
static const char *model; /* of the oracle's */
static char path[1024];
static uint32_t n_vocab;
static uint32_t n_text; /* N_TEXT, or fewer */
static int32_t text[N_TEXT];
static float *logits; /* [N_TEXT][n_vocab]: with all pages, token by token, by one thread */

static moe_engine_options window_options(uint32_t chunk, uint32_t n_threads)
{
    moe_engine_options options = oracle_options(path, folder, model);
    options.context = CONTEXT;
    options.prefill_chunk = chunk;
    options.panel = 1; /* while one is under way its pages are all there: test_panel */
    options.n_threads = n_threads;
    return options;
}

static bool frees(const moe_engine *engine)
{
    bool any = false;
    for (uint32_t g = 0; g < engine->kv.n_groups; g++) {
        any |= engine->kv.groups[g].frees;
    }
    return any;
}

static moe_engine *open_windows(uint32_t chunk, uint32_t n_threads)
{
    moe_engine_options options = window_options(chunk, n_threads);
    moe_engine *engine = open_engine(&options);
    assert_true(frees(engine));
    return engine;
}

static void keep_all_pages(moe_engine *engine)
{
    for (uint32_t g = 0; g < engine->kv.n_groups; g++) {
        engine->kv.groups[g].frees = false;
    }
}

static void step(moe_engine *engine, moe_session **sessions, size_t n)
{
    moe_error error;
    if (moe_step(engine, sessions, n, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

static void step_all(moe_engine *engine, moe_session *session)
{
    while (moe_session_n_pending(session) > 0) {
        step(engine, &session, 1);
    }
}

static moe_session *reading_session(moe_engine *engine)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    return session;
}

/* The session holds the first tokens of the text, and has just been evaluated. */
static void check_logits(const moe_session *session)
{
    size_t n = moe_session_n_tokens(session);
    assert_non_null(moe_session_logits(session));
    if (memcmp(moe_session_logits(session), logits + (n - 1) * n_vocab, n_vocab * sizeof(float)) !=
        0) {
        fail_msg("%s: other logits after %zu tokens", model, n);
    }
}

/* No more than the span, the margin and what a step writes. */
static void check_pages(const moe_session *session)
{
    const moe_engine *engine = session->engine;
    const moe_kv_table *t = &session->kv;
    assert_true(moe_kv_pool_is_sane(&engine->kv) && moe_kv_table_is_sane(&engine->kv, t));
    for (uint32_t g = 0; g < engine->kv.n_groups; g++) {
        const moe_kv_group *group = &engine->kv.groups[g];
        assert_true(!group->frees || t->n_pages - t->first_page[g] <= group->most_live);
        assert_true(group->frees || t->first_page[g] == 0);
    }
}

static int open_model(const char *name)
{
    model = name;
    n_text = test_is_small() ? 800 : N_TEXT;
    moe_engine *engine = open_windows(1, 1);
    n_vocab = engine->config.n_vocab;
    keep_all_pages(engine);
    make_prompt(text, N_TEXT, n_vocab, 5);
    logits = calloc((size_t)N_TEXT * n_vocab, sizeof(float));
    moe_session *session = reading_session(engine);
    for (uint32_t i = 0; i < n_text; i++) {
        feed(session, &text[i], 1);
        step(engine, &session, 1);
        memcpy(logits + (size_t)i * n_vocab, moe_session_logits(session), n_vocab * sizeof(float));
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(logits);
    return 0;
}

/* ---- One text ---- */

static bool compare_row(size_t position, const float *row, void *user)
{
    check_pages(user);
    if (memcmp(row, logits + position * n_vocab, n_vocab * sizeof *row) != 0) {
        fail_msg("%s: other logits at position %zu", model, position);
    }
    return true;
}

static void chunks_threads_and_devices(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 64, 200, 96, 33};
    static const char *const devices[] = {"cpu", "sim:memory=64M,link=4GB/s,latency=20us"};
    for (uint32_t i = 0; i < 6; i++) {
        moe_engine_options options = window_options(chunks[i], 1 + i % 3);
        options.device = devices[i >= 4];
        options.expert_cache_share = i >= 3 ? 0.5 : 0.0;
        bool reference = test_is_small() ? i == 1 : i % 2 == 1;
        lab_of(&options)->kernels = reference ? MOE_KERNELS_REFERENCE : MOE_KERNELS_NATIVE;
        moe_engine *engine = open_engine(&options);
        assert_true(frees(engine));
        moe_session *session = reading_session(engine);
        assert_int_equal(moe_session_score(session, text, n_text, compare_row, session, NULL),
                         MOE_OK);
        for (uint32_t g = 0; g < engine->kv.n_groups; g++) {
            assert_true(!engine->kv.groups[g].frees || session->kv.first_page[g] > 0);
        }
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
}

static void batch_neighbours(void **state)
{
    (void)state;
    moe_engine *engine = open_windows(48, 2);
    moe_session *sessions[3];
    uint32_t n[3] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        sessions[i] = reading_session(engine);
    }
    for (uint32_t round = 0; n[2] + 60 < n_text; round++) {
        bool pending = true;
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t more = (round * 5 + i * 11) % 23 + i;
            feed(sessions[i], text + n[i], more);
            n[i] += more;
        }
        while (pending) {
            step(engine, sessions, 3);
            pending = false;
            for (uint32_t i = 0; i < 3; i++) {
                pending |= moe_session_n_pending(sessions[i]) > 0;
                check_pages(sessions[i]);
            }
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        check_logits(sessions[i]);
        moe_session_close(&sessions[i]);
    }
    assert_true(moe_memory_border_check(&engine->border));
    moe_engine_close(&engine);
}

/* ---- Cutting back ---- */

/* Within the margin nothing is evaluated again; further back the snapshots serve. */
static void rule_of_cuts(void **state)
{
    (void)state;
    moe_engine *engine = open_windows(64, 1);
    moe_session *session = reading_session(engine);
    feed(session, text, 500);
    step_all(engine, session);
    feed(session, text + 500, 100); /* a turn */
    step_all(engine, session);
    for (uint32_t i = 600; i < 760; i++) {
        feed(session, text + i, 1);
        step_all(engine, session);
    }
    assert_int_equal(moe_session_truncate(session, 760 - MOE_KV_MARGIN, NULL), MOE_OK);
    assert_int_equal(session->n_evaluated, 760 - MOE_KV_MARGIN);
    feed(session, text + session->n_tokens, 1);
    step_all(engine, session);
    check_logits(session);
    assert_int_equal(moe_session_truncate(session, 505, NULL), MOE_OK);
    assert_int_equal(session->n_evaluated, 500); /* where the turn began */
    assert_int_equal(moe_session_n_pending(session), 0);
    feed(session, text + 505, 1);
    step_all(engine, session);
    check_logits(session);
    assert_int_equal(moe_session_truncate(session, 300, NULL), MOE_OK);
    assert_int_equal(session->n_evaluated, 0); /* from the beginning */
    feed(session, text + 300, 1);
    step_all(engine, session);
    check_logits(session);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % n;
}

static moe_session *save_and_load(moe_engine *engine, moe_session *session)
{
    char file[] = "/tmp/moe-windows-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    moe_error error;
    moe_session *loaded = NULL;
    assert_int_equal(moe_session_save(session, file, NULL), MOE_OK);
    if (moe_session_load(&loaded, engine, file, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    unlink(file);
    moe_session_close(&session);
    return loaded;
}

/* Does one thing to one of three timelines of the text. */
static void do_something(moe_engine *engine, moe_session **sessions, uint64_t *seed)
{
    uint32_t i = random_below(seed, 3);
    uint32_t n = (uint32_t)moe_session_n_tokens(sessions[i]);
    uint32_t what = random_below(seed, 10);
    if (what == 0 && n > 0) {
        moe_session_close(&sessions[(i + 1) % 3]);
        assert_int_equal(moe_session_fork(&sessions[(i + 1) % 3], sessions[i], NULL), MOE_OK);
    } else if (what == 1 && n > 0) {
        sessions[i] = save_and_load(engine, sessions[i]);
    } else if (what <= 3 && n > 100) {
        uint32_t back = what == 2 ? 1 + random_below(seed, MOE_KV_MARGIN) : random_below(seed, n);
        assert_int_equal(moe_session_truncate(sessions[i], n - back, NULL), MOE_OK);
    } else if (what == 4 && n > 300) {
        moe_session_close(&sessions[i]);
        sessions[i] = reading_session(engine);
    }
    n = (uint32_t)moe_session_n_tokens(sessions[i]);
    uint32_t more = random_below(seed, 4) == 0 ? random_below(seed, 400) : random_below(seed, 50);
    more = more < n_text - n ? more : n_text - n;
    feed(sessions[i], text + n, more);
    uint32_t n_steps = random_below(seed, 5); /* sometimes not to the end */
    for (uint32_t s = 0; moe_session_n_pending(sessions[i]) > 0 && (n_steps > 0 || s < 2); s++) {
        step(engine, &sessions[i], 1);
    }
    check_pages(sessions[i]);
    if (more > 0 && moe_session_n_pending(sessions[i]) == 0) {
        check_logits(sessions[i]);
    }
}

static void anything_in_any_order(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {64, 17, 128};
    uint64_t seed = 11;
    for (uint32_t c = 0; c < 3; c++) {
        moe_engine *engine = open_windows(chunks[c], 1 + c % 2);
        moe_session *sessions[3];
        for (uint32_t i = 0; i < 3; i++) {
            sessions[i] = reading_session(engine);
        }
        for (uint32_t n = test_is_small() ? 30 : 70; n > 0; n--) {
            do_something(engine, sessions, &seed);
        }
        for (uint32_t i = 0; i < 3; i++) {
            moe_session_close(&sessions[i]);
        }
        assert_true(moe_memory_border_check(&engine->border));
        moe_kv_pool_trim(&engine->kv);
        assert_int_equal(moe_kv_pool_bytes(&engine->kv), 0);
        moe_engine_close(&engine);
    }
}

/* ---- Drafts ---- */

static void write_looping(moe_engine *engine, int32_t *out)
{
    int32_t prompt[N_WRITE];
    for (uint32_t i = 0; i < N_WRITE; i++) {
        prompt[i] = text[i % 9];
    }
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_WRITE);
    for (size_t done = 0; done < N_WRITE;) {
        step(engine, &session, 1);
        check_pages(session);
        done += moe_session_take(session, out + done, N_WRITE - done);
    }
    moe_session_close(&session);
    assert_true(moe_memory_border_check(&engine->border));
}

static void drafts_and_trees(void **state)
{
    (void)state;
    static const struct {
        moe_speculate speculate;
        uint32_t tree_nodes, lookahead;
        double share;
    } ways[] = {{MOE_SPECULATE_NGRAM, 0, 0, 1.0}, {MOE_SPECULATE_SELF, 0, 0, 0.8},
                {MOE_SPECULATE_SELF, 0, 0, 1.0},  {MOE_SPECULATE_SELF, 12, 0, 0.8},
                {MOE_SPECULATE_AUTO, 0, 0, 0.8},  {MOE_SPECULATE_OFF, 0, 4, 0.8}};
    int32_t expected[N_WRITE], got[N_WRITE];
    moe_engine *engine = open_windows(1, 1);
    keep_all_pages(engine);
    write_looping(engine, expected);
    moe_engine_close(&engine);
    uint64_t accepted = 0, rejected = 0;
    for (uint32_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        moe_engine_options options = window_options(64, 2);
        options.speculate = ways[i].speculate;
        options.tree_nodes = ways[i].tree_nodes;
        options.lookahead = ways[i].lookahead;
        options.expert_cache_share = ways[i].share;
        if (ways[i].speculate != MOE_SPECULATE_OFF) {
            options.draft_max = 6;
            lab_of(&options)->length_control = MOE_LENGTH_STATIC;
        } else {
            options.lab = NULL;
        }
        engine = open_engine(&options);
        assert_true(frees(engine));
        write_looping(engine, got);
        assert_memory_equal(got, expected, sizeof got);
        const moe_speculation_stats *stats = &engine->speculation->stats;
        accepted += stats->accepted;
        rejected += stats->drafted - stats->accepted;
        moe_engine_close(&engine);
    }
    print_message("%s: %llu drafted tokens accepted, %llu rejected\n", model,
                  (unsigned long long)accepted, (unsigned long long)rejected);
    assert_true(accepted > 20 && rejected > 20);
}

/* ---- Memory ---- */

/* A prompt of many tokens takes what the plan says, to the byte: neither more at any time, nor less
 * at its most. */
static void memory_as_planned(void **state)
{
    (void)state;
    moe_engine_options options = window_options(64, 2);
    moe_memory_plan plan = {.struct_size = sizeof plan};
    moe_memory_plan longer = {.struct_size = sizeof longer};
    assert_int_equal(moe_plan_memory(&options, &plan, NULL), MOE_OK);
    options.context = 2 * CONTEXT;
    assert_int_equal(moe_plan_memory(&options, &longer, NULL), MOE_OK);
    assert_int_equal(plan.kv_windowed, longer.kv_windowed);
    assert_int_equal(2 * (plan.kv_cache - plan.kv_windowed), longer.kv_cache - longer.kv_windowed);
    options.context = CONTEXT;
    moe_engine *engine = open_engine(&options);
    moe_session *session = reading_session(engine);
    uint64_t most = 0;
    /* So that spans begin as late in a page as they can. */
    static const uint32_t turns[] = {66, 320, 256, 1, 1, 62, 384, 128};
    for (uint32_t i = 0; i < sizeof turns / sizeof turns[0]; i++) {
        uint32_t n = (uint32_t)moe_session_n_tokens(session);
        for (uint32_t t = 0; t < turns[i]; t++) {
            feed(session, &text[(n + t) % N_TEXT], 1);
        }
        session->kv.begins_turn = true;
        while (moe_session_n_pending(session) > 0) {
            step(engine, &session, 1);
            check_pages(session);
            uint64_t now = moe_kv_pool_bytes(&engine->kv);
            most = now > most ? now : most;
            assert_true(now <= plan.kv_cache);
        }
    }
    uint32_t rest = CONTEXT - (uint32_t)moe_session_n_tokens(session);
    feed(session, text, rest);
    step_all(engine, session);
    uint64_t now = moe_kv_pool_bytes(&engine->kv);
    print_message("%s: planned %llu (%llu behind windows), most %llu\n", model,
                  (unsigned long long)plan.kv_cache, (unsigned long long)plan.kv_windowed,
                  (unsigned long long)now);
    assert_int_equal(now, plan.kv_cache);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static int set_up_gpt_oss(void **state)
{
    (void)state;
    return open_model("gpt-oss-page");
}

static int set_up_gemma(void **state)
{
    (void)state;
    return open_model("gemma4-page");
}

static int set_up_llama(void **state)
{
    (void)state;
    return open_model("llama4-page");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_threads_and_devices),
        cmocka_unit_test(batch_neighbours),
        cmocka_unit_test(rule_of_cuts),
        cmocka_unit_test(anything_in_any_order),
        cmocka_unit_test(drafts_and_trees),
        cmocka_unit_test(memory_as_planned),
    };
    if (argc != 2) {
        fprintf(stderr, "usage: %s ORACLE-FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    int failed = cmocka_run_group_tests_name("gpt-oss", tests, set_up_gpt_oss, tear_down);
    failed += cmocka_run_group_tests_name("gemma4", tests, set_up_gemma, tear_down);
    return failed + cmocka_run_group_tests_name("llama4", tests, set_up_llama, tear_down);
}
