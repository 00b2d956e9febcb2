/* SPDX-License-Identifier: MIT */
/* What the public header promises of sessions: limits, refusals, cutting back, forks at the edges
 * of KV pages, cancelling. Usage: test_sessions ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "engine_fixture.h"

#define PAGE     64u /* MOE_KV_PAGE: positions of a page of the KV cache */
#define N_TOKENS 200u

static const char *folder;

typedef struct fixture {
    moe_engine *engine;
    uint32_t n_vocab;
    int32_t text[N_TOKENS];
    float *logits; /* [N_TOKENS][n_vocab], by moe_session_score() */
} fixture;

static fixture f;

static moe_engine *open_named(const char *name, uint32_t context, uint32_t chunk)
{
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, name);
    options.context = context;
    options.prefill_chunk = chunk;
    return open_engine(&options);
}

static bool keep_row(size_t position, const float *logits, void *user)
{
    (void)user;
    memcpy(f.logits + position * f.n_vocab, logits, f.n_vocab * sizeof *logits);
    return true;
}

static int set_up(void **state)
{
    (void)state;
    f.engine = open_named("olmoe", 256, 48);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(f.engine, &info);
    f.n_vocab = info.n_vocab;
    f.logits = calloc((size_t)N_TOKENS * f.n_vocab, sizeof *f.logits);
    make_prompt(f.text, N_TOKENS, f.n_vocab, 5);
    moe_session *session = greedy_session(f.engine);
    assert_int_equal(moe_session_score(session, f.text, N_TOKENS, keep_row, NULL, NULL), MOE_OK);
    moe_session_close(&session);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(f.logits);
    moe_engine_close(&f.engine);
    return 0;
}

static void step(moe_session *session)
{
    moe_error error;
    if (moe_step(f.engine, &session, 1, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
}

/* Steps until everything fed is evaluated, and one token is sampled. */
static void step_all(moe_session *session)
{
    size_t n_fed = moe_session_n_tokens(session);
    while (moe_session_n_tokens(session) == n_fed) {
        step(session);
    }
}

/* The session holds the first n tokens of the text, evaluated: its logits are those of the text. */
static void check_logits_at(const moe_session *session, size_t n)
{
    assert_non_null(moe_session_logits(session));
    assert_memory_equal(moe_session_logits(session), f.logits + (n - 1) * f.n_vocab,
                        f.n_vocab * sizeof(float));
}

static void feeding_has_limits(void **state)
{
    (void)state;
    moe_session *session = greedy_session(f.engine);
    int32_t many[257] = {0};
    moe_error error;
    assert_int_equal(moe_session_feed(session, many, 257, &error), MOE_ERR_CONTEXT_FULL);
    assert_non_null(strstr(error.message, "256"));
    assert_int_equal(moe_session_n_tokens(session), 0);
    feed(session, many, 250);
    assert_int_equal(moe_session_feed(session, many, 7, NULL), MOE_ERR_CONTEXT_FULL);
    assert_int_equal(moe_session_feed(session, many, SIZE_MAX, NULL), MOE_ERR_CONTEXT_FULL);
    assert_int_equal(moe_session_n_tokens(session), 250);
    const int32_t bad[] = {-1, INT32_MIN, INT32_MAX, (int32_t)f.n_vocab};
    for (size_t i = 0; i < 4; i++) {
        int32_t pair[2] = {3, bad[i]};
        assert_int_equal(moe_session_feed(session, pair, 2, &error), MOE_ERR_ARGUMENT);
        assert_int_equal(moe_session_n_tokens(session), 250);
    }
    feed(session, many, 0);
    assert_false(moe_session_is_full(session));
    feed(session, many, 6);
    assert_true(moe_session_is_full(session));
    assert_int_equal(moe_session_n_pending(session), 256);
    moe_session_close(&session);
}

/* A context filled by feeding is evaluated and nothing is sampled; filled by sampling it ends. */
static void full_sessions_sample_nothing(void **state)
{
    (void)state;
    moe_session *session = greedy_session(f.engine);
    int32_t tokens[256];
    make_prompt(tokens, 256, f.n_vocab, 9);
    feed(session, tokens, 256);
    for (int i = 0; i < 8; i++) {
        step(session);
    }
    assert_int_equal(moe_session_n_pending(session), 0);
    assert_int_equal(moe_session_n_tokens(session), 256);
    assert_non_null(moe_session_logits(session));
    assert_int_equal(moe_session_take(session, tokens, 256), 0);
    assert_int_equal(moe_session_truncate(session, 250, NULL), MOE_OK);
    feed(session, tokens, 1);
    for (int i = 0; i < 20; i++) {
        step(session);
    }
    assert_true(moe_session_is_full(session));
    assert_int_equal(moe_session_take(session, tokens, 256), 5);
    moe_session_close(&session);
}

static void steps_refuse(void **state)
{
    (void)state;
    moe_engine *other = open_named("mixtral", 64, 2);
    moe_session *mine = greedy_session(f.engine);
    moe_session *theirs[3] = {greedy_session(other), greedy_session(other), greedy_session(other)};
    feed(mine, f.text, 3);
    moe_session *mixed[2] = {mine, theirs[0]};
    moe_error error;
    assert_int_equal(moe_step(f.engine, mixed, 2, &error), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_session_n_pending(mine), 3);
    moe_session *twice[2] = {mine, mine};
    assert_int_equal(moe_step(f.engine, twice, 2, &error), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_session_n_pending(mine), 3);
    for (int i = 0; i < 3; i++) {
        feed(theirs[i], f.text, i == 2 ? 0 : 1);
    }
    assert_int_equal(moe_step(other, theirs, 3, &error),
                     MOE_OK); /* one of them has nothing to do */
    feed(theirs[2], f.text, 1);
    assert_int_equal(moe_step(other, theirs, 3, &error), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_session_n_pending(theirs[2]), 1);
    assert_int_equal(moe_step(other, theirs + 1, 2, &error), MOE_OK);
    assert_int_equal(moe_step(other, NULL, 0, &error), MOE_OK);
    step_all(mine);
    check_logits_at(mine, 3);
    moe_session_close(&mine);
    for (int i = 0; i < 3; i++) {
        moe_session_close(&theirs[i]);
    }
    moe_engine_close(&other);
}

static void evaluate_only_samples_nothing(void **state)
{
    (void)state;
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session;
    assert_int_equal(moe_session_create(&session, f.engine, &options, NULL), MOE_OK);
    assert_null(moe_session_logits(session));
    step(session);
    feed(session, f.text, 60);
    step(session);
    assert_int_equal(moe_session_n_pending(session), 12);
    step(session);
    step(session);
    assert_int_equal(moe_session_n_tokens(session), 60);
    assert_int_equal(moe_session_n_pending(session), 0);
    check_logits_at(session, 60);
    int32_t token;
    assert_int_equal(moe_session_take(session, &token, 1), 0);
    moe_session_close(&session);
    options.struct_size = 1;
    assert_int_equal(moe_session_create(&session, f.engine, &options, NULL), MOE_ERR_ARGUMENT);
    assert_null(session);
}

/* Cut back to every kind of point, of what is evaluated and what is only fed, then on to the end:
 * the logits there are those of the text read in one go. */
static void truncating(void **state)
{
    (void)state;
    const size_t points[] = {
        0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 143, 144, 145, 190};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        moe_session *session = greedy_session(f.engine);
        feed(session, f.text, 195);
        for (int s = 0; s < 3; s++) {
            step(session); /* 3 * 48 = 144 evaluated, 51 pending */
        }
        assert_int_equal(moe_session_n_pending(session), 51);
        assert_int_equal(moe_session_truncate(session, 196, NULL), MOE_ERR_ARGUMENT);
        assert_int_equal(moe_session_truncate(session, points[i], NULL), MOE_OK);
        assert_int_equal(moe_session_n_tokens(session), points[i]);
        assert_int_equal(moe_session_n_pending(session), points[i] > 144 ? points[i] - 144 : 0);
        feed(session, f.text + points[i], N_TOKENS - points[i]);
        step_all(session);
        check_logits_at(session, N_TOKENS);
        moe_session_close(&session);
    }
}

/* A timeline cut back to where its logits are at hand samples from them; cut back further it has
 * none and steps do nothing until it is fed. */
static void truncating_to_logits(void **state)
{
    (void)state;
    moe_session *session = greedy_session(f.engine);
    feed(session, f.text, 40);
    step(session);
    int32_t first, again;
    assert_int_equal(moe_session_take(session, &first, 1), 1);
    assert_int_equal(moe_session_truncate(session, 40, NULL), MOE_OK);
    check_logits_at(session, 40);
    step(session);
    assert_int_equal(moe_session_take(session, &again, 1), 1);
    assert_int_equal(first, again);
    assert_int_equal(moe_session_truncate(session, 39, NULL), MOE_OK);
    assert_null(moe_session_logits(session));
    step(session);
    assert_int_equal(moe_session_n_tokens(session), 39);
    assert_int_equal(moe_session_take(session, &again, 1), 0);
    feed(session, f.text + 39, 1);
    step(session);
    assert_int_equal(moe_session_take(session, &again, 1), 1);
    assert_int_equal(first, again);
    moe_session_close(&session);
}

/* Forks at the edges of pages; then both write different tokens there, in either order. */
static void forks_copy_on_write(void **state)
{
    (void)state;
    const size_t lengths[] = {1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE};
    int32_t other[30];
    make_prompt(other, 30, f.n_vocab, 77);
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof lengths[0]; i++) {
        size_t n = lengths[i / 2];
        moe_session *session = greedy_session(f.engine);
        feed(session, f.text, n);
        step_all(session);
        assert_int_equal(moe_session_truncate(session, n, NULL), MOE_OK);
        moe_session *fork;
        assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
        check_logits_at(fork, n);
        moe_session *stays = i % 2 == 0 ? session : fork;
        moe_session *strays = i % 2 == 0 ? fork : session;
        feed(strays, other, 30);
        step_all(strays);
        feed(stays, f.text + n, 40);
        step_all(stays);
        check_logits_at(stays, n + 40);
        moe_session_close(&strays);
        feed(stays, other, 30);
        step_all(stays);
        assert_int_equal(moe_session_truncate(stays, n + 40, NULL), MOE_OK);
        feed(stays, f.text + n + 40, 10);
        step_all(stays);
        check_logits_at(stays, n + 50);
        moe_session_close(&stays);
    }
}

static void check_refused(moe_session *session, const moe_sampling *sampling)
{
    moe_error error = {""};
    assert_int_equal(moe_session_set_sampling(session, sampling, &error), MOE_ERR_ARGUMENT);
    assert_true(error.message[0] != '\0');
}

static void sampling_is_checked(void **state)
{
    (void)state;
    moe_session *session = greedy_session(f.engine);
    moe_sampling good, bad;
    moe_sampling_init(&good);
    const float temperatures[] = {-0.1f, NAN, INFINITY, -INFINITY};
    const float top_ps[] = {0.0f, -0.5f, 1.01f, NAN};
    const float min_ps[] = {-0.01f, 1.0f, 2.0f, NAN};
    const float penalties[] = {0.0f, -1.0f, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        bad = good;
        bad.temperature = temperatures[i];
        check_refused(session, &bad);
        bad = good;
        bad.top_p = top_ps[i];
        check_refused(session, &bad);
        bad = good;
        bad.min_p = min_ps[i];
        check_refused(session, &bad);
        bad = good;
        bad.repeat_penalty = penalties[i];
        check_refused(session, &bad);
    }
    bad = good;
    bad.struct_size--;
    check_refused(session, &bad);
    /* What was refused has changed nothing: the session is still greedy. */
    feed(session, f.text, 30);
    step(session);
    int32_t greedy, token;
    assert_int_equal(moe_session_take(session, &greedy, 1), 1);
    const float *x = f.logits + (size_t)29 * f.n_vocab;
    for (uint32_t t = 0; t < f.n_vocab; t++) {
        assert_true(x[t] <= x[greedy]);
    }
    good.temperature = 1.0f;
    good.top_k = 1;
    assert_int_equal(moe_session_set_sampling(session, &good, NULL), MOE_OK);
    assert_int_equal(moe_session_truncate(session, 30, NULL), MOE_OK);
    step(session);
    assert_int_equal(moe_session_take(session, &token, 1), 1);
    assert_int_equal(token, greedy);
    moe_session_close(&session);
}

static bool stop_at_20(size_t position, const float *logits, void *user)
{
    (void)logits;
    *(size_t *)user = position;
    return position < 20;
}

/* moe_session_score() gives, bit for bit, what steps give; stopped, the timeline ends there. */
static void scoring_equals_stepping(void **state)
{
    (void)state;
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session;
    assert_int_equal(moe_session_create(&session, f.engine, &options, NULL), MOE_OK);
    for (size_t i = 0; i < 100; i++) {
        feed(session, f.text + i, 1);
        step(session);
        check_logits_at(session, i + 1);
    }
    feed(session, f.text + 100, 1);
    size_t last = 0;
    assert_int_equal(moe_session_score(session, f.text, 1, stop_at_20, &last, NULL),
                     MOE_ERR_ARGUMENT); /* something is pending */
    moe_session_close(&session);

    session = greedy_session(f.engine);
    assert_int_equal(moe_session_score(session, f.text, 40, stop_at_20, &last, NULL), MOE_OK);
    assert_int_equal(last, 20);
    assert_int_equal(moe_session_n_pending(session), 0);
    check_logits_at(session, moe_session_n_tokens(session));
    size_t n = moe_session_n_tokens(session);
    feed(session, f.text + n, 60 - n);
    step_all(session);
    check_logits_at(session, 60);
    moe_session_close(&session);
}

typedef struct canceller {
    moe_session *session;
    atomic_bool begun; /* the first step is about to be asked for */
    uint64_t delay_ns;
    struct timespec asked;
} canceller;

static void *cancel_later(void *arg)
{
    canceller *c = arg;
    while (!atomic_load(&c->begun)) {
        sched_yield();
    }
    struct timespec delay = {.tv_nsec = (long)c->delay_ns};
    nanosleep(&delay, NULL);
    clock_gettime(CLOCK_MONOTONIC, &c->asked);
    moe_session_cancel(c->session);
    return NULL;
}

/* Evaluates the text in pieces of two tokens while another thread cancels: the step says so soon
 * after, and what follows is as if it had not been. Returns whether the request came in time. */
static bool cancel_a_prefill(moe_engine *engine, uint64_t delay_ns)
{
    moe_session *session = greedy_session(engine);
    feed(session, f.text, N_TOKENS);
    canceller c = {.session = session, .delay_ns = delay_ns};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_later, &c), 0);
    atomic_store(&c.begun, true);
    int status = MOE_OK;
    while (status == MOE_OK && moe_session_n_tokens(session) == N_TOKENS) {
        status = moe_step(engine, &session, 1, NULL);
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_join(thread, NULL);
    bool in_time = status != MOE_OK;
    if (in_time) {
        assert_int_equal(status, MOE_ERR_CANCELLED);
        double late =
            (double)(now.tv_sec - c.asked.tv_sec) + (double)(now.tv_nsec - c.asked.tv_nsec) / 1e9;
        assert_true(late < 120.0);
        while (moe_session_n_tokens(session) == N_TOKENS) {
            assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        }
    } else {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_ERR_CANCELLED);
    }
    assert_int_equal(moe_session_truncate(session, N_TOKENS, NULL), MOE_OK);
    check_logits_at(session, N_TOKENS);
    moe_session_close(&session);
    return in_time;
}

/* A crowded machine lets the other thread run too late; there are more rounds then. */
static void cancelling(void **state)
{
    (void)state;
    moe_engine *engine = open_named("olmoe", 256, 2);
    int n_cancelled = 0, n_rounds = 0;
    for (; n_rounds < 15 || (n_cancelled < 5 && n_rounds < 1000); n_rounds++) {
        n_cancelled += cancel_a_prefill(engine, (uint64_t)(n_rounds % 15) * 400000);
    }
    print_message("%d of %d cancelled while running\n", n_cancelled, n_rounds);
    moe_engine_close(&engine);
    assert_true(n_cancelled >= 5);
}

/* With nothing to evaluate the request is answered too, and answered once. */
static void cancelling_what_has_nothing_to_do(void **state)
{
    (void)state;
    moe_session *session = greedy_session(f.engine);
    feed(session, f.text, 10);
    step(session);
    assert_int_equal(moe_session_truncate(session, 10, NULL), MOE_OK);
    moe_session_cancel(session);
    moe_session_cancel(session);
    assert_int_equal(moe_step(f.engine, &session, 1, NULL), MOE_ERR_CANCELLED);
    assert_int_equal(moe_session_n_tokens(session), 10);
    step(session);
    assert_int_equal(moe_session_n_tokens(session), 11);
    moe_session_close(&session);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_sessions ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feeding_has_limits),
        cmocka_unit_test(full_sessions_sample_nothing),
        cmocka_unit_test(steps_refuse),
        cmocka_unit_test(evaluate_only_samples_nothing),
        cmocka_unit_test(truncating),
        cmocka_unit_test(truncating_to_logits),
        cmocka_unit_test(forks_copy_on_write),
        cmocka_unit_test(sampling_is_checked),
        cmocka_unit_test(scoring_equals_stepping),
        cmocka_unit_test(cancelling),
        cmocka_unit_test(cancelling_what_has_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
