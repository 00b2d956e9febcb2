/* SPDX-License-Identifier: MIT */
/* Layers whose experts a table says for each token (DeepSeek-V4): all of them are requested before
 * the pass that uses them, so no layer is the first to ask for one.
 * Usage: test_table_routes MODEL.gguf, of whose layers all have a table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine_fixture.h"

#define N_PROMPT 40
#define N_DECODE 24

static const char *model_path;

static moe_engine_stats run_with(moe_switch prefetch)
{
    int32_t tokens[N_PROMPT], out[N_DECODE];
    moe_engine_options options = fixture_options(model_path, 7, 256);
    options.prefetch = prefetch;
    options.warm_start = MOE_SWITCH_OFF;
    moe_engine *engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    make_prompt(tokens, N_PROMPT, 95, 3);
    feed(session, tokens, N_PROMPT);
    decode(engine, session, out, N_DECODE);
    moe_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return stats;
}

/* Each expert comes into memory once, and no layer is the first to ask for it. */
static void test_all_are_requested_ahead(void **state)
{
    (void)state;
    moe_engine_stats stats = run_with(MOE_SWITCH_ON);
    assert_int_equal(stats.expert_evictions, 0);
    assert_int_equal(stats.prefetches, stats.expert_slots);
    assert_int_equal(stats.prefetches_used, stats.prefetches);
    assert_int_equal(run_with(MOE_SWITCH_OFF).prefetches, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_requested_ahead),
    };
    model_path = argc > 1 ? argv[1] : "";
    return argc == 2 ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
