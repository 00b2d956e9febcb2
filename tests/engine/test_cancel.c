/* SPDX-License-Identifier: MIT */
/* Cancels one session of a step at every kind of moment: the others' step succeeds, the library
 * tells which session was left out, and every session writes the text that it writes alone. With
 * and without speculation. Argument: a model. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <moe/moe.h>

#include "tests/engine/engine_fixture.h"
#include "tests/test_size.h"

enum { N_SESSIONS = 3, N_PROMPT = 24, N_WRITTEN = 40, N_CONTEXT = 256 };

static const char *model_path;
static size_t n_written; /* by each session; N_WRITTEN at most */

static moe_engine *open_with(moe_speculate speculate)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.context = N_CONTEXT;
    options.prefill_chunk = 128; /* all prompts at once: every step writes */
    options.speculate = speculate;
    options.expert_cache_share = 0.5;
    return open_engine(&options);
}

static moe_session *begin(moe_engine *engine, uint32_t seed)
{
    int32_t prompt[N_PROMPT];
    moe_engine_info info = {.struct_size = sizeof info};
    assert_int_equal(moe_engine_get_info(engine, &info), MOE_OK);
    make_prompt(prompt, N_PROMPT, info.n_vocab, seed);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    return session;
}

static void write_alone(moe_engine *engine, int32_t out[N_SESSIONS][N_WRITTEN])
{
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        moe_session *session = begin(engine, i);
        decode(engine, session, out[i], n_written);
        moe_session_close(&session);
    }
}

static bool all_written(moe_session *const *sessions)
{
    for (int i = 0; i < N_SESSIONS; i++) {
        if (moe_session_n_tokens(sessions[i]) < N_PROMPT + n_written) {
            return false;
        }
    }
    return true;
}

static void check_texts(moe_session **sessions, int32_t expected[N_SESSIONS][N_WRITTEN])
{
    for (int i = 0; i < N_SESSIONS; i++) {
        assert_memory_equal(moe_session_tokens(sessions[i]) + N_PROMPT, expected[i],
                            n_written * sizeof(int32_t));
        moe_session_close(&sessions[i]);
    }
}

/* Before a step: exactly those that were asked for are left out, and the step fails only when that
 * is all of them. */
static void before_a_step(moe_speculate speculate)
{
    int32_t expected[N_SESSIONS][N_WRITTEN];
    moe_engine *engine = open_with(speculate);
    write_alone(engine, expected);
    moe_session *sessions[N_SESSIONS];
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        sessions[i] = begin(engine, i);
    }
    for (unsigned round = 0; !all_written(sessions); round++) {
        unsigned who = round % (1u << N_SESSIONS);
        size_t n_before[N_SESSIONS];
        for (int i = 0; i < N_SESSIONS; i++) {
            n_before[i] = moe_session_n_tokens(sessions[i]);
            if (who >> i & 1) {
                moe_session_cancel(sessions[i]);
            }
        }
        int status = moe_step(engine, sessions, N_SESSIONS, NULL);
        bool all = who == (1u << N_SESSIONS) - 1;
        assert_int_equal(status, all ? MOE_ERR_CANCELLED : MOE_OK);
        for (int i = 0; i < N_SESSIONS; i++) {
            bool out = who >> i & 1;
            assert_int_equal(moe_session_was_cancelled(sessions[i]), out);
            size_t n = moe_session_n_tokens(sessions[i]);
            assert_true(out ? n == n_before[i] : n > n_before[i]);
        }
    }
    check_texts(sessions, expected);
    moe_engine_close(&engine);
}

typedef struct canceller {
    moe_session **sessions;
    _Atomic unsigned n_asked;
    _Atomic bool stop;
} canceller;

static void *cancel_often(void *arg)
{
    canceller *c = arg;
    for (unsigned i = 0; !atomic_load(&c->stop); i++) {
        struct timespec delay = {.tv_nsec = 300000 + i * 7919 % 1500000};
        nanosleep(&delay, NULL);
        moe_session_cancel(c->sessions[i * 5 % 2]);
        atomic_fetch_add(&c->n_asked, 1);
    }
    return NULL;
}

/* While steps run: two sessions are cancelled again and again, the third never is and advances with
 * every step. */
static void within_a_step(moe_speculate speculate)
{
    int32_t expected[N_SESSIONS][N_WRITTEN];
    moe_engine *engine = open_with(speculate);
    write_alone(engine, expected);
    moe_session *sessions[N_SESSIONS];
    unsigned n_left_out = 0;
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        sessions[i] = begin(engine, i);
    }
    canceller c = {.sessions = sessions};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_often, &c), 0);
    /* On a busy machine until the other thread has come to it. */
    while (moe_session_n_tokens(sessions[2]) < N_PROMPT + n_written ||
           (n_left_out == 0 && moe_session_n_tokens(sessions[2]) < N_CONTEXT - 32)) {
        size_t n = moe_session_n_tokens(sessions[2]);
        while (n_left_out == 0 && n >= N_CONTEXT - 64 && atomic_load(&c.n_asked) == 0) {
            sched_yield(); /* little room is left, and the other thread has not run yet */
        }
        assert_int_equal(moe_step(engine, sessions, N_SESSIONS, NULL), MOE_OK);
        assert_false(moe_session_was_cancelled(sessions[2]));
        assert_true(moe_session_n_tokens(sessions[2]) > n);
        n_left_out += moe_session_was_cancelled(sessions[0]);
        n_left_out += moe_session_was_cancelled(sessions[1]);
    }
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    while (!all_written(sessions)) {
        int status = moe_step(engine, sessions, N_SESSIONS, NULL);
        assert_true(status == MOE_OK);
    }
    print_message("%d: left out %u times\n", (int)speculate, n_left_out);
    assert_true(n_left_out > 0);
    check_texts(sessions, expected);
    moe_engine_close(&engine);
}

static void plain(void **state)
{
    (void)state;
    if (!test_is_small()) {
        before_a_step(MOE_SPECULATE_OFF);
    }
    within_a_step(MOE_SPECULATE_OFF);
}

static void ngram(void **state)
{
    (void)state;
    if (!test_is_small()) {
        before_a_step(MOE_SPECULATE_NGRAM);
        within_a_step(MOE_SPECULATE_NGRAM);
    }
}

static void self(void **state)
{
    (void)state;
    before_a_step(MOE_SPECULATE_SELF);
    within_a_step(MOE_SPECULATE_SELF);
}

/* A session that is alone is told by the status, as scoring is. */
static void alone(void **state)
{
    (void)state;
    moe_engine *engine = open_with(MOE_SPECULATE_OFF);
    moe_session *session = begin(engine, 1);
    moe_session_cancel(session);
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_ERR_CANCELLED);
    assert_true(moe_session_was_cancelled(session));
    assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    assert_false(moe_session_was_cancelled(session));
    moe_session_close(&session);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(ngram),
        cmocka_unit_test(self),
        cmocka_unit_test(alone),
    };
    model_path = argc > 1 ? argv[1] : NULL;
    n_written = test_is_small() ? 12 : N_WRITTEN;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
