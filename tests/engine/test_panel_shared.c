/* SPDX-License-Identifier: MIT */
/* Panels of several sessions: they share the reading, whoever leaves does not disturb the others,
 * and other sessions get their part of the time. Usage: test_panel_shared DEMO-MODEL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/engine/session_panel.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/panel_fixture.h"

/* Of prompt i of several: the session, which only evaluates it. */
static moe_session *one_of_several(moe_engine *engine, uint32_t i)
{
    int32_t prompt[CONTEXT];
    moe_session_options o;
    moe_session_options_init(&o);
    o.evaluate_only = true;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &o, NULL), MOE_OK);
    prompt_of(engine, n_long - 7 * i, 20 + i, prompt);
    feed(session, prompt, n_long - 7 * i);
    return session;
}

enum { SEVERAL = 4 };

/* Evaluates prompts, each from the step on that `begins` says; returns the bytes read. logits:
 * [SEVERAL][n_vocab], what they must have at the end. */
static uint64_t evaluate_several(moe_engine *engine, const uint32_t *begins, const float *logits)
{
    moe_session *s[SEVERAL];
    const uint32_t n_vocab = engine->config.n_vocab;
    const uint64_t before = traffic_of(engine).read;
    size_t n_in = 0, n_pending = 1;
    for (uint32_t at = 0; n_in < SEVERAL || n_pending > 0; at++) {
        while (n_in < SEVERAL && begins[n_in] <= at) {
            s[n_in] = one_of_several(engine, (uint32_t)n_in);
            n_in++;
        }
        step(engine, s, n_in);
        n_pending = 0;
        for (size_t i = 0; i < n_in; i++) {
            n_pending += moe_session_n_pending(s[i]);
        }
        assert_true(at < 2000);
    }
    const uint64_t read = traffic_of(engine).read - before;
    for (uint32_t i = 0; i < SEVERAL; i++) {
        assert_memory_equal(moe_session_logits(s[i]), logits + (size_t)i * n_vocab,
                            n_vocab * sizeof *logits);
        moe_session_close(&s[i]);
    }
    check_returned(engine);
    return read;
}

/* Prompts that wait at the same time share a panel: together they read what one with all of their
 * rows does. Those that come while one is under way share the next. */
static void prompts_share_panels(void **state)
{
    (void)state;
    moe_engine_options o = options_of(64, MANY, 0.4);
    o.prefetch = MOE_SWITCH_OFF;
    moe_engine *engine = open_engine(&o);
    const uint32_t n_vocab = engine->config.n_vocab;
    float *alone = calloc((size_t)SEVERAL * n_vocab, sizeof *alone);
    for (uint32_t i = 0; i < SEVERAL; i++) {
        moe_session *session = one_of_several(engine, i);
        float *logits = logits_behind(engine, session);
        memcpy(alone + (size_t)i * n_vocab, logits, n_vocab * sizeof *logits);
        free(logits);
        moe_session_close(&session);
    }
    moe_engine_close(&engine);
    const used_experts used = used_by(n_long, 20, NULL);
    const uint64_t all = used.bytes.read * used.n_all / used.n;
    free(used.is);
    static const uint32_t begins[][SEVERAL] = {{0, 0, 0, 0}, {0, 1, 1, 1}};
    for (uint32_t i = 0; i < 2; i++) {
        engine = open_engine(&o);
        /* What the first panel leaves in memory the second does not read. */
        const uint64_t read = evaluate_several(engine, begins[i], alone);
        const uint64_t most = i == 0 ? all : all + all * 65 / 100;
        if ((double)read > 1.02 * (double)most) {
            fail_msg("%u panels read %llu bytes of %llu", 1 + i, (unsigned long long)read,
                     (unsigned long long)most);
        }
        moe_engine_close(&engine);
    }
    free(alone);
}

/* Whoever is cancelled, closed or cut leaves the panel, in any part of a layer; the others go on in
 * it, and all write their texts. */
static void some_leave(void **state)
{
    (void)state;
    int32_t alone[3][N_WRITTEN], got[N_WRITTEN];
    moe_engine_options o = options_of(16, MANY, 0.12);
    moe_engine *engine = open_engine(&o);
    for (uint32_t i = 0; i < 3; i++) {
        write_alone(engine, 100 + 30 * i, 30 + i, alone[i]);
    }
    for (uint32_t leaver = 0; leaver < 3; leaver++) {
        for (int part = MOE_PANEL_MIX; part <= MOE_PANEL_REST; part++) {
            moe_session *s[3];
            for (uint32_t i = 0; i < 3; i++) {
                s[i] = fed_session(engine, 100 + 30 * i, 30 + i);
            }
            do {
                step(engine, s, 3);
            } while ((int)engine->panel.part != part || engine->panel.layer == 0);
            step(engine, s, 3);
            assert_int_equal(engine->panel.n_prompts, 3);
            moe_session_cancel(s[leaver]);
            step(engine, s, 3);
            assert_true(moe_session_was_cancelled(s[leaver]));
            for (uint32_t i = 0; i < 3; i++) {
                assert_true(moe_panel_has(engine, s[i]) == (i != leaver));
            }
            moe_session_close(&s[(leaver + 1) % 3]);
            for (uint32_t i = 0; i < 3; i++) {
                if (s[i] != NULL) {
                    decode(engine, s[i], got, N_WRITTEN);
                    assert_memory_equal(got, alone[i], sizeof got);
                    moe_session_close(&s[i]);
                }
            }
            check_returned(engine);
        }
    }
    moe_engine_close(&engine);
}

/* Others get the part of the time that the options say. */
static void others_get_their_part(void **state)
{
    (void)state;
    uint32_t n_between[2];
    static const uint32_t parts[] = {25, 75};
    for (uint32_t i = 0; i < 2; i++) {
        moe_engine_options o = options_of(64, MANY, 0.4);
        o.speculate = MOE_SPECULATE_OFF;
        o.panel_others = parts[i];
        moe_engine *engine = open_engine(&o);
        moe_session *s[] = {fed_session(engine, N_SHORT, 2), fed_session(engine, n_long, 3)};
        n_between[i] = 0;
        do {
            step(engine, s, 2);
            n_between[i]++;
        } while (moe_panel_has(engine, s[1]));
        moe_session_close(&s[0]);
        moe_session_close(&s[1]);
        moe_engine_close(&engine);
    }
    if (n_between[1] < 3 * n_between[0]) { /* nine times, but for clocks and load */
        fail_msg("with a quarter of the time %u tokens, with three quarters %u", n_between[0],
                 n_between[1]);
    }
    moe_engine *engine = NULL;
    moe_error error = {""};
    moe_engine_options o = options_of(64, MANY, 0.4);
    o.panel_others = 100;
    assert_int_equal(moe_engine_open(&engine, &o, &error), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "options.panel_others must be 1 to 99"));
}

/* Bytes that the engine reads in n steps of these sessions, for each step. A panel that is under
 * way evaluates one chunk in each, whatever the clock says. */
static uint64_t bytes_of_steps(moe_engine *engine, moe_session *const *s, size_t n_sessions,
                               uint32_t n)
{
    const uint64_t before = traffic_of(engine).read;
    for (uint32_t i = 0; i < n; i++) {
        engine->panel.left_ns = 0;
        step(engine, s, n_sessions);
    }
    return (traffic_of(engine).read - before) / n;
}

/* Beside a panel, a pass of sessions that write reads little more than without one. */
static void others_read_little_more(void **state)
{
    enum { OTHERS = 8, N_STEPS = 24 };
    (void)state;
    moe_engine_options o = options_of(64, 0, 0.4);
    o.speculate = MOE_SPECULATE_OFF;
    o.prefetch = MOE_SWITCH_OFF;
    moe_engine *engine = open_engine(&o);
    moe_session *s[OTHERS + 1];
    for (uint32_t i = 0; i < OTHERS; i++) {
        moe_session_options options;
        int32_t prompt[N_SHORT];
        moe_session_options_init(&options);
        options.sampling.temperature = 1.0f;
        options.sampling.seed = i + 1;
        assert_int_equal(moe_session_create(&s[i], engine, &options, NULL), MOE_OK);
        prompt_of(engine, N_SHORT, 40 + i, prompt);
        feed(s[i], prompt, N_SHORT);
    }
    (void)bytes_of_steps(engine, s, OTHERS, N_STEPS);
    const uint64_t alone = bytes_of_steps(engine, s, OTHERS, N_STEPS);
    s[OTHERS] = fed_session(engine, n_long, 77);
    const uint64_t beside = bytes_of_steps(engine, s, OTHERS + 1, N_STEPS);
    assert_true(moe_panel_has(engine, s[OTHERS]));
    print_message("a pass of %d sessions reads %llu KiB, beside a panel %llu KiB\n", OTHERS,
                  (unsigned long long)alone / KIB, (unsigned long long)beside / KIB);
    assert_true(alone > 0 && (double)beside < 1.5 * (double)alone);
    for (uint32_t i = 0; i <= OTHERS; i++) {
        moe_session_close(&s[i]);
    }
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    panel_fixture_open(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_share_panels),
        cmocka_unit_test(some_leave),
        cmocka_unit_test(others_get_their_part),
        cmocka_unit_test(others_read_little_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
