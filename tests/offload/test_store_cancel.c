/* SPDX-License-Identifier: MIT */
/* Cancels a step while it waits for a read that does not come: the step ends at once and not at the
 * time-out, nothing is put where the read will write, the session continues as if nothing had
 * happened, and closing does not wait for the time-out either.
 * Usage: test_store_cancel ORACLE-FOLDER */
#include "tests/offload/store_fixture.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"

#define MS         1000000u
#define TIMEOUT_MS 600000u
#define AT_ONCE_MS 120000u /* far below the time-out, and above what a busy machine may take */
#define SIM_DEVICE "sim:memory=64M,link=8GB/s,latency=2us"

enum { N_PROMPT = 12, N_TOKENS = 20 };

static char model_path[1024];

static uint32_t n_lines; /* that the store has logged */

static void count_line(const char *line, void *user)
{
    (void)line;
    (void)user;
    n_lines++;
}

static void be_patient(moe_expert_store_options *options, void *user)
{
    const uint32_t *timeout_ms = user;
    options->io_timeout_ns = *timeout_ms * (uint64_t)MS;
    options->log = count_line;
}

static void open_fixture(store_fixture *f, const char *device, uint32_t timeout_ms)
{
    store_fixture_open_on(f, device, model_path, 0.3, be_patient, &timeout_ms);
}

static moe_session *prompt(store_fixture *f)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, f->engine, &options, NULL), MOE_OK);
    int32_t tokens[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) {
        tokens[i] = 3 + 7 * i;
    }
    assert_int_equal(moe_session_feed(session, tokens, N_PROMPT, NULL), MOE_OK);
    return session;
}

static void write_tokens(store_fixture *f, moe_session *session, int32_t *tokens)
{
    for (size_t n = 0; n < N_TOKENS;) {
        assert_int_equal(moe_step(f->engine, &session, 1, NULL), MOE_OK);
        n += moe_session_take(session, tokens + n, N_TOKENS - n);
    }
}

/* The first expert of layer 0 that is read from now on is stuck. */
static void stick_next(store_fixture *f)
{
    f->chosen = (expert_name){0, 0};
    atomic_store(&f->stick_chosen, true);
    atomic_store(&f->choose_next, true);
}

static void let_go(store_fixture *f)
{
    atomic_store(&f->stick_chosen, false);
    atomic_store(&f->fault.let_go, true);
}

typedef struct canceller {
    store_fixture *f;
    moe_session *session;
    _Atomic uint64_t asked_ns;
} canceller;

/* When the read is stuck, and the step has had time to wait for it. */
static void *cancel_stuck(void *arg)
{
    canceller *c = arg;
    while (atomic_load(&c->f->stuck_at) == NULL) {
        store_sleep_ms(1);
    }
    store_sleep_ms(50);
    atomic_store(&c->asked_ns, moe_now_ns());
    moe_session_cancel(c->session);
    return NULL;
}

static void expect_cancelled(store_fixture *f, moe_session *session)
{
    canceller c = {.f = f, .session = session};
    pthread_t thread;
    moe_error error = {""};
    assert_int_equal(pthread_create(&thread, NULL, cancel_stuck, &c), 0);
    int status = moe_step(f->engine, &session, 1, &error);
    uint64_t now = moe_now_ns();
    pthread_join(thread, NULL);
    assert_int_equal(status, MOE_ERR_CANCELLED);
    assert_in_range((now - atomic_load(&c.asked_ns)) / MS, 0, AT_ONCE_MS);
    assert_non_null(strstr(error.message, "cancelled"));
    assert_int_equal(moe_session_n_tokens(session), N_PROMPT);
}

/* Under pressure on the slots every other expert has its own bytes, and none of the stuck one's. */
static void use_everything_else(store_fixture *f)
{
    for (uint64_t pass = 1; pass < 4; pass++) {
        for (uint32_t e = 0; e < f->map->n_expert; e++) {
            if (e != f->chosen.expert) {
                assert_int_equal(store_request(f, 0, pass, &e, 1, NULL), MOE_OK);
            }
        }
    }
}

/* No expert that may be used stands where the stuck read will write. (A device's memory is apart
 * from what reads write to.) */
static void nothing_stands_there(store_fixture *f)
{
    moe_expert_store *store = f->engine->runner.experts;
    uintptr_t target = (uintptr_t)atomic_load(&f->stuck_at);
    bool *resident = calloc(f->map->n_expert, sizeof *resident);
    assert_non_null(resident);
    for (uint32_t l = 0; l < f->map->n_layer; l++) {
        moe_expert_store_residents(store, l, resident);
        for (uint32_t e = 0; e < f->map->n_expert; e++) {
            moe_expert_view view;
            if (!resident[e]) {
                continue;
            }
            moe_expert_store_peek(store, l, &e, 1, &view);
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                const moe_tensor_ref *ref = &f->map->layers[l].experts[e].parts[p];
                uintptr_t data = (uintptr_t)view.parts[p].data;
                assert_false(target + 4096 > data && target < data + ref->size);
            }
        }
    }
    free(resident);
}

/* Two sessions wait for one stuck read, and one is cancelled: the step goes on for the other, which
 * waits until the disk answers. */
static void *cancel_then_let_go(void *arg)
{
    canceller *c = arg;
    (void)cancel_stuck(c);
    store_sleep_ms(50);
    let_go(c->f);
    return NULL;
}

static void other_session_waits(void **state)
{
    (void)state;
    int32_t expected[N_TOKENS], tokens[N_TOKENS];
    store_fixture f;
    open_fixture(&f, "cpu", TIMEOUT_MS);
    moe_session *alone = prompt(&f);
    write_tokens(&f, alone, expected);
    moe_session_close(&alone);
    store_fixture_close(&f);

    open_fixture(&f, "cpu", TIMEOUT_MS);
    moe_session *sessions[2] = {prompt(&f), prompt(&f)};
    stick_next(&f);
    canceller c = {.f = &f, .session = sessions[0]};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_then_let_go, &c), 0);
    moe_error error = {""};
    int status = moe_step(f.engine, sessions, 2, &error);
    pthread_join(thread, NULL);
    assert_int_equal(status, MOE_OK);
    assert_true(moe_session_was_cancelled(sessions[0]));
    assert_false(moe_session_was_cancelled(sessions[1]));
    assert_int_equal(moe_session_n_tokens(sessions[0]), N_PROMPT);
    assert_true(moe_session_n_tokens(sessions[1]) > N_PROMPT);
    for (int i = 0; i < 2; i++) {
        write_tokens(&f, sessions[i], tokens);
        assert_memory_equal(tokens, expected, sizeof tokens);
        moe_session_close(&sessions[i]);
    }
    store_fixture_close(&f);
}

static void step_gives_up_on(const char *device)
{
    int32_t expected[N_TOKENS], tokens[N_TOKENS];
    store_fixture f;
    open_fixture(&f, device, TIMEOUT_MS);
    moe_session *session = prompt(&f);
    write_tokens(&f, session, expected);
    moe_session_close(&session);
    store_fixture_close(&f);

    open_fixture(&f, device, TIMEOUT_MS);
    session = prompt(&f);
    stick_next(&f);
    expect_cancelled(&f, session);
    use_everything_else(&f);
    nothing_stands_there(&f);
    expect_cancelled(&f, session); /* it needs the same expert again */
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(f.engine->runner.experts, &stats);
    assert_int_equal(stats.n_timeouts, 0);
    assert_int_equal(stats.n_failed, 0);
    let_go(&f);
    write_tokens(&f, session, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    use_everything_else(&f);
    moe_session_close(&session);
    store_fixture_close(&f);
}

static void step_gives_up(void **state)
{
    (void)state;
    step_gives_up_on("cpu");
    step_gives_up_on(SIM_DEVICE);
}

/* The read comes when the engine has long been closed: its memory must still be there. */
static void closing_does_not_wait(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", SIM_DEVICE};
    for (int i = 0; i < 2; i++) {
        store_fixture f;
        open_fixture(&f, devices[i], TIMEOUT_MS);
        moe_session *session = prompt(&f);
        stick_next(&f);
        expect_cancelled(&f, session);
        uint8_t *target = atomic_load(&f.stuck_at);
        uint64_t begin = moe_now_ns();
        moe_session_close(&session);
        n_lines = 0;
        store_fixture_close(&f);
        assert_in_range((moe_now_ns() - begin) / MS, 300,
                        AT_ONCE_MS); /* half a second, not minutes */
        assert_true(n_lines > 0);
        memset(target, 0xa5, 64);
        assert_int_equal(target[63], 0xa5);
    }
}

static void *let_go_later(void *arg)
{
    store_sleep_ms(2500);
    let_go(arg);
    return NULL;
}

/* Once there was a sign of life, closing has the old patience, however many were cancelled. */
static void closing_waits_for_a_slow_disk(void **state)
{
    (void)state;
    store_fixture f;
    open_fixture(&f, "cpu", 16000);
    moe_session *session = prompt(&f);
    stick_next(&f);
    expect_cancelled(&f, session);
    moe_session_close(&session);
    use_everything_else(&f); /* the disk is well but for one read */
    n_lines = 0;
    pthread_t thread;
    uint64_t begin = moe_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, let_go_later, &f), 0);
    moe_expert_store_close(&f.engine->runner.experts);
    uint64_t ms = (moe_now_ns() - begin) / MS;
    pthread_join(thread, NULL);
    assert_in_range(ms, 2250, AT_ONCE_MS); /* and not an eighth of the time-out */
    assert_int_equal(n_lines, 0);          /* nothing was left to the read */
    store_fixture_close(&f);
}

static bool always(void *user)
{
    ++*(uint32_t *)user;
    return true;
}

/* Who is cancelled before it waits still gets what needs no waiting. */
static void nothing_to_wait_for(void **state)
{
    (void)state;
    store_fixture f;
    open_fixture(&f, "cpu", TIMEOUT_MS);
    uint32_t expert = 2, n_rows = 1, n_asked = 0, position, n;
    float gate = 1.0f;
    moe_layer_request request = {.experts = &expert,
                                 .n_rows = &n_rows,
                                 .gates = &gate,
                                 .n = 1,
                                 .cancel = {always, &n_asked}};
    moe_expert_view view;
    moe_expert_store *store = f.engine->runner.experts;
    f.chosen = (expert_name){0, 2};
    atomic_store(&f.stick_chosen, true);
    assert_int_equal(moe_expert_store_begin(store, &request, NULL), MOE_OK);
    assert_int_equal(moe_expert_store_next(store, &position, &view, &n, NULL), MOE_ERR_CANCELLED);
    assert_int_equal(n_asked, 1);
    let_go(&f);
    assert_int_equal(store_request(&f, 0, 1, &expert, 1, NULL), MOE_OK);
    assert_int_equal(n_asked, 1); /* that request has no such question */
    request.pass = 2;
    assert_int_equal(moe_expert_store_begin(store, &request, NULL), MOE_OK);
    assert_int_equal(moe_expert_store_next(store, &position, &view, &n, NULL), MOE_OK);
    assert_int_equal(n, 1);
    store_check_view(&f, 0, 2, &view);
    assert_int_equal(moe_expert_store_next(store, &position, &view, &n, NULL), MOE_OK);
    assert_int_equal(n, 0);
    store_fixture_close(&f);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_cancel ORACLE-FOLDER\n");
        return 2;
    }
    alarm(120); /* a hang is a failure */
    snprintf(model_path, sizeof model_path, "%s/olmoe/model.gguf", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_gives_up),
        cmocka_unit_test(closing_does_not_wait),
        cmocka_unit_test(closing_waits_for_a_slow_disk),
        cmocka_unit_test(nothing_to_wait_for),
        cmocka_unit_test(other_session_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
