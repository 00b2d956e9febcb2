/* SPDX-License-Identifier: MIT */
/* The tokens of moe_session_take(): each sampled token once, in order, and none that was cut off.
 * Usage: test_taken_tokens ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine_fixture.h"
#include "engine_options.h"

#define N_TEXT 64

static const char *folder;
static moe_engine *engine;
static int32_t text[N_TEXT];

static int set_up(void **state)
{
    (void)state;
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, "olmoe");
    engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    make_prompt(text, N_TEXT, info.n_vocab, 5);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    moe_engine_close(&engine);
    return 0;
}

static void step(moe_session *session)
{
    moe_error error;
    if (moe_step(engine, &session, 1, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

static void tokens_are_taken_in_parts(void **state)
{
    (void)state;
    moe_session *session = greedy_session(engine);
    feed(session, text, 20);
    for (int i = 0; i < 7; i++) {
        step(session);
    }
    const int32_t *sampled = moe_session_tokens(session) + 20;
    int32_t taken[8];
    assert_int_equal(moe_session_take(session, NULL, 0), 0);
    assert_int_equal(moe_session_take(session, taken, 3), 3);
    assert_int_equal(moe_session_take(session, taken + 3, 5), 4);
    assert_int_equal(moe_session_take(session, taken + 7, 1), 0);
    assert_memory_equal(taken, sampled, 7 * sizeof *taken);
    moe_session_close(&session);
}

/* What is sampled and not taken is dropped where it is cut off, and only there. */
static void truncating_what_is_not_taken(void **state)
{
    (void)state;
    int32_t taken[8];
    moe_engine_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    moe_session *session = greedy_session(engine);
    feed(session, text, 40);
    for (int i = 0; i < 4; i++) {
        step(session);
    }
    feed(session, text, 2);
    step(session);
    step(session); /* sampled: 40 to 43, 46 and 47 */
    int32_t sampled[48];
    assert_int_equal(moe_session_n_tokens(session), 48);
    memcpy(sampled, moe_session_tokens(session), sizeof sampled);
    assert_int_equal(moe_session_take(session, taken, 1), 1);
    assert_int_equal(taken[0], sampled[40]);
    assert_int_equal(moe_session_truncate(session, 48, NULL), MOE_OK);
    assert_int_equal(moe_session_truncate(session, 47, NULL), MOE_OK);
    assert_int_equal(moe_session_take(session, taken, 1), 1);
    assert_int_equal(taken[0], sampled[41]);
    assert_int_equal(moe_session_truncate(session, 45, NULL), MOE_OK);
    assert_int_equal(moe_session_truncate(session, 43, NULL), MOE_OK);
    assert_int_equal(moe_session_take(session, taken, 8), 1);
    assert_int_equal(taken[0], sampled[42]);
    /* A sampled token that waits to be evaluated still does when what follows it is cut off. */
    feed(session, text + 43, 1);
    step(session);
    feed(session, text, 3);
    assert_int_equal(moe_session_truncate(session, 45, NULL), MOE_OK);
    assert_int_equal(moe_session_n_pending(session), 1);
    moe_engine_get_stats(engine, &before);
    step(session);
    moe_engine_get_stats(engine, &after);
    assert_int_equal(after.decode_tokens - before.decode_tokens, 1);
    assert_int_equal(moe_session_take(session, taken, 8), 2);
    assert_int_equal(moe_session_truncate(session, 0, NULL), MOE_OK);
    assert_int_equal(moe_session_take(session, taken, 8), 0);
    moe_session_close(&session);
}

/* Several tokens of one step: what the cut leaves of them is given. */
static void truncating_after_speculation(void **state)
{
    (void)state;
    char path[1024];
    moe_engine *plain = engine;
    moe_engine_options options = oracle_options(path, folder, "olmoe");
    options.speculate = MOE_SPECULATE_NGRAM;
    lab_of(&options)->length_control = MOE_LENGTH_STATIC;
    engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    feed(session, text, 20);
    size_t n_most = 0; /* tokens of one step */
    for (int i = 0; i < 150; i++) {
        size_t n_before = moe_session_n_tokens(session);
        step(session);
        size_t n = moe_session_n_tokens(session) - n_before;
        n_most = n > n_most ? n : n_most;
        if (n < 3) {
            continue;
        }
        int32_t all[512], taken[512];
        memcpy(all, moe_session_tokens(session), (n_before + n) * sizeof *all);
        assert_int_equal(moe_session_truncate(session, n_before + 2, NULL), MOE_OK);
        assert_int_equal(moe_session_take(session, taken, 512), n_before + 2 - 20);
        assert_memory_equal(taken, all + 20, (n_before + 2 - 20) * sizeof *taken);
        break;
    }
    assert_true(n_most >= 3);
    moe_session_close(&session);
    moe_engine_close(&engine);
    engine = plain;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_taken_tokens ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_taken_in_parts),
        cmocka_unit_test(truncating_what_is_not_taken),
        cmocka_unit_test(truncating_after_speculation),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
