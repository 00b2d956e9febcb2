/* SPDX-License-Identifier: MIT */
/* Passes NULL where something is required, and closes an engine before the objects made from it.
 * Arguments: a model, the number of functions that the headers declare. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/chat.h>
#include <moe/lab.h>
#include <moe/moe.h>

#include "../engine/engine_options.h"
#include "null_calls.h"

static const char *model_path;
static int n_checked;

static void check(const char *name, int status)
{
    n_checked++;
    if (status != MOE_ERR_ARGUMENT) {
        fail_msg("%s returned %d (%s)", name, status, moe_status_name(status));
    }
}

static void everything_null(void **state)
{
    (void)state;
    call_all_with_null(check);
    assert_true(n_checked > 30);
}

static moe_engine *open_model(void)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.context = 256;
    moe_engine *engine = NULL;
    moe_error err = {""};
    if (moe_engine_open(&engine, &options, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return engine;
}

/* One argument at a time is NULL, the others are good. */
static void one_null(void **state)
{
    (void)state;
    moe_engine *engine = open_model();
    moe_session *session = NULL;
    moe_session *none = NULL;
    moe_error err = {""};
    int32_t token = 1, *tokens = &token;
    size_t n = 9, size = 9;
    moe_engine_options options;
    moe_engine_options_init(&options);
    check("open", moe_engine_open(NULL, &options, &err));
    moe_engine_close(&engine);
    check("open", moe_engine_open(&engine, NULL, &err));
    assert_null(engine);
    engine = open_model();
    assert_int_equal(moe_session_create(&session, engine, NULL, NULL), MOE_OK);
    check("create", moe_session_create(NULL, engine, NULL, &err));
    check("create", moe_session_create(&none, NULL, NULL, &err));
    assert_non_null(strstr(err.message, "moe_session_create: NULL for engine"));
    check("feed", moe_session_feed(session, NULL, 1, &err));
    assert_int_equal(moe_session_feed(session, NULL, 0, &err), MOE_OK);
    check("feed", moe_session_feed(NULL, &token, 1, &err));
    check("step", moe_step(engine, NULL, 1, &err));
    check("step", moe_step(NULL, &session, 1, &err));
    check("step", moe_step(engine, &none, 1, &err));
    assert_int_equal(moe_step(engine, NULL, 0, &err), MOE_OK);
    check("score", moe_session_score(session, &token, 1, NULL, NULL, &err));
    check("sampling", moe_session_set_sampling(session, NULL, &err));
    check("save", moe_session_save(session, NULL, &err));
    check("fork", moe_session_fork(NULL, session, &err));
    check("load", moe_session_load(&none, engine, NULL, &err));
    check("tokenize", moe_tokenize(engine, NULL, 3, 0, &tokens, &n, &err));
    check("tokenize", moe_tokenize(engine, "text", 4, 0, NULL, &n, &err));
    check("tokenize", moe_tokenize(engine, "text", 4, 0, &tokens, NULL, &err));
    moe_chat_prompt *prompt = NULL;
    moe_chat_reply *reply = NULL;
    moe_chat_options chat;
    moe_chat_options_init(&chat);
    check("chat", moe_chat_render(&prompt, engine, &chat, &err));
    assert_non_null(strstr(err.message, "moe_chat_render: NULL for options->messages"));
    check("chat", moe_chat_render(&prompt, engine, NULL, &err));
    check("chat", moe_chat_render(NULL, engine, &chat, &err));
    check("reply", moe_chat_reply_create(&reply, engine, NULL, &err));
    assert_null(moe_chat_prompt_tokens(NULL, &n));
    assert_string_equal(moe_chat_prompt_text(NULL, &n), "");
    const char *part = NULL;
    moe_chat_reply_push(NULL, 1, &part, NULL);
    assert_string_equal(part, "");
    check("follow", moe_session_follow(session, NULL, 3, &n, &err));
    check("info", moe_engine_get_info(engine, NULL));
    check("statistics", moe_engine_get_stats(engine, NULL));
    check("tiers", moe_engine_get_tiers(engine, NULL, 5, &err));
    check("bandwidth", moe_engine_measure_bandwidth(engine, NULL, &err));
    (void)moe_token_piece(engine, 1, true, NULL);
    assert_string_equal(moe_text_push(NULL, 1, &size), "");
    assert_int_equal(size, 0);
    assert_int_equal(moe_session_take(session, NULL, 5), 0);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

/* The engine lives until the last of its sessions and text streams is closed, in any order. */
static void engine_closed_first(void **state)
{
    (void)state;
    for (int order = 0; order < 2; order++) {
        moe_engine *engine = open_model();
        moe_engine *same = engine;
        moe_session *session = NULL, *fork = NULL;
        moe_text *text = NULL;
        int32_t token = 1;
        size_t size;
        assert_int_equal(moe_session_create(&session, engine, NULL, NULL), MOE_OK);
        int status = moe_text_create(&text, engine, NULL);
        moe_engine_close(&engine);
        assert_null(engine);
        assert_int_equal(moe_session_feed(session, &token, 1, NULL), MOE_OK);
        assert_int_equal(moe_step(same, &session, 1, NULL), MOE_OK);
        assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
        assert_non_null(moe_session_logits(fork));
        if (status == MOE_OK) {
            (void)moe_text_push(text, 1, &size);
        }
        if (order == 0) {
            moe_text_close(&text);
        }
        moe_session_close(&session);
        assert_false(moe_session_is_full(fork));
        moe_session_close(&fork);
        if (status == MOE_OK && order == 1) {
            (void)moe_text_push(text, 2, &size);
            (void)moe_text_finish(text, &size);
        }
        moe_text_close(&text);
        assert_null(text);
    }
}

typedef struct option_case {
    const char *field, *other;
    void (*set)(moe_engine_options *options);
} option_case;

static void gates_alone(moe_engine_options *o)
{
    lab_of(o)->trace_gates = true;
}

static void depth_of_sync(moe_engine_options *o)
{
    o->io = MOE_IO_SYNC;
    o->io_depth = 4;
}

static void self_settings_of_ngram(moe_engine_options *o)
{
    o->speculate = MOE_SPECULATE_NGRAM;
    lab_of(o)->verify_bytes = 1 << 20;
}

static void pin_of_ngram(moe_engine_options *o)
{
    o->speculate = MOE_SPECULATE_NGRAM;
    lab_of(o)->draft_pin = MOE_DRAFT_PIN_RANDOM;
}

static void budget_above_all(moe_engine_options *o)
{
    lossy_of(o)->expert_budget = 100000;
}

/* A value that an enumeration does not have is refused with its field and the values there are. */
static void values_of_enumerations(void **state)
{
    (void)state;
    static const struct {
        size_t options, lossy, lab; /* where the field is, in one of the three; else 0 */
        const char *field, *value;
    } cases[] = {
        {offsetof(moe_engine_options, kv_cache), 0, 0, "options.kv_cache", "_Q4_0 or _F8"},
        {offsetof(moe_engine_options, float_gemm), 0, 0, "options.float_gemm", "GEMM_BLAS"},
        {offsetof(moe_engine_options, io), 0, 0, "options.io", "MOE_IO_URING"},
        {offsetof(moe_engine_options, warm_start), 0, 0, "options.warm_start", "MOE_SWITCH_ON"},
        {offsetof(moe_engine_options, prefetch), 0, 0, "options.prefetch", "MOE_SWITCH_ON"},
        {offsetof(moe_engine_options, host_compute), 0, 0, "options.host_compute", "_SWITCH_ON"},
        {offsetof(moe_engine_options, speculate), 0, 0, "options.speculate", "_SELF"},
        {offsetof(moe_engine_options, acceptance), 0, 0, "options.acceptance", "_REJECTION"},
        {0, offsetof(moe_lossy_options, budget_order), 0, "options.lossy.budget_order", "ROUTER"},
        {0, 0, offsetof(moe_lab_options, offload), "options.lab.offload", "_CACHING"},
        {0, 0, offsetof(moe_lab_options, kernels), "options.lab.kernels", "_AVX512"},
        {0, 0, offsetof(moe_lab_options, length_control), "options.lab.length_control", "STATIC"},
        {0, 0, offsetof(moe_lab_options, draft_pin), "options.lab.draft_pin", "_RANDOM"},
        {0, 0, offsetof(moe_lab_options, affinity), "options.lab.affinity", "_COACT"},
        {0, 0, offsetof(moe_lab_options, foresight), "options.lab.foresight", "MOE_SWITCH_ON"},
        {0, 0, offsetof(moe_lab_options, read_in_place), "options.lab.read_in_place", "_ON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int value = -1; value <= 99; value += 100) {
            moe_engine_options options;
            moe_memory_plan plan = {.struct_size = sizeof plan};
            moe_error err = {""};
            moe_engine_options_init(&options);
            options.model_path = model_path;
            char *at = cases[i].options > 0 ? (char *)&options + cases[i].options
                       : cases[i].lossy > 0 ? (char *)lossy_of(&options) + cases[i].lossy
                                            : (char *)lab_of(&options) + cases[i].lab;
            memcpy(at, &value, sizeof value);
            assert_int_equal(moe_plan_memory(&options, &plan, &err), MOE_ERR_ARGUMENT);
            if (strstr(err.message, cases[i].field) == NULL ||
                strstr(err.message, cases[i].value) == NULL) {
                fail_msg("%s: %s", cases[i].field, err.message);
            }
        }
    }
}

/* A field that another one leaves without effect is refused, and both are named. */
static void fields_without_effect(void **state)
{
    (void)state;
    static const option_case cases[] = {
        {"options.lab.trace_gates", "options.lab.trace_path", gates_alone},
        {"options.io_depth", "options.io", depth_of_sync},
        {"options.lab.verify_bytes", "options.speculate", self_settings_of_ngram},
        {"options.lab.draft_pin", "options.speculate", pin_of_ngram},
        {"options.lossy.expert_budget", "experts", budget_above_all},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_engine_options options;
        moe_engine *engine = NULL;
        moe_error err = {""};
        moe_engine_options_init(&options);
        options.model_path = model_path;
        cases[i].set(&options);
        check(cases[i].field, moe_engine_open(&engine, &options, &err));
        assert_non_null(strstr(err.message, cases[i].field));
        assert_non_null(strstr(err.message, cases[i].other));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_null),       cmocka_unit_test(one_null),
        cmocka_unit_test(engine_closed_first),   cmocka_unit_test(values_of_enumerations),
        cmocka_unit_test(fields_without_effect),
    };
    model_path = argc > 1 ? argv[1] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
