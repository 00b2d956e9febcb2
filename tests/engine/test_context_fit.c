/* SPDX-License-Identifier: MIT */
/* The context of an engine whose options name none, on machines described by the test: it is the
 * largest that works and leaves experts their part, and no longer one does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <moe/moe.h>

#include "runtime/engine/context_fit.h"
#include "runtime/pass/kv_cache.h"

#define MIB       (UINT64_C(1) << 20)
#define KIB       (UINT64_C(1) << 10)
#define N_LAYER   8
#define N_EXPERT  64
#define N_USED    4
#define N_CONTEXT 131072u

static moe_engine_options options;
static moe_model_config config;
static moe_tensor_map map;

static uint64_t session_bytes(const void *user, uint64_t n_tokens)
{
    (void)user;
    return MIB + 8 * n_tokens;
}

/* 512 experts of 1 MiB, 100 MiB of other weights, 16 KiB for each token's keys and values. */
static moe_plan_input make_input(uint64_t budget)
{
    moe_engine_options_init(&options);
    options.host_memory = budget;
    config = (moe_model_config){.n_layer = N_LAYER, .n_expert = N_EXPERT, .n_expert_used = N_USED};
    for (uint32_t l = 0; l < N_LAYER; l++) {
        config.layers[l].feed_forward = MOE_FEED_FORWARD_ROUTED;
    }
    map = (moe_tensor_map){.n_layer = N_LAYER, .n_expert = N_EXPERT, .expert_bytes = 512 * MIB};
    return (moe_plan_input){
        .options = &options,
        .config = &config,
        .map = &map,
        .process_bytes = 10 * MIB,
        .available_bytes = 65536 * MIB,
        .limit_bytes = 65536 * MIB,
        .resident_bytes = 100 * MIB,
        .kv = {.n_groups = 1, .page_bytes = {16 * KIB * MOE_KV_PAGE}},
        .scratch_bytes = 6 * MIB,
        .slots = {.full_bytes = 512 * MIB, .slot_bytes = MIB},
        .context = N_CONTEXT,
    };
}

static int plan_of(const moe_plan_input *in, uint32_t context, moe_memory_plan *plan)
{
    moe_plan_input at = *in;
    at.context = context;
    at.session_bytes = session_bytes(NULL, context);
    return moe_memory_plan_make(&at, plan, NULL);
}

static bool leaves_three_quarters(const moe_memory_plan *plan)
{
    uint64_t session = plan->kv_cache + plan->session_state;
    return plan->expert_slots == plan->experts || session * 3 <= plan->expert_cache;
}

static void test_all_fits(void **state)
{
    (void)state;
    moe_plan_input in = make_input(4096 * MIB);
    assert_int_equal(moe_fit_context(&in, session_bytes, NULL), N_CONTEXT);
}

/* Over every budget: what is chosen works, a page more would not do, and more memory never makes it
 * shorter. */
static void test_every_budget(void **state)
{
    (void)state;
    uint32_t before = 0;
    unsigned n_between = 0;
    for (uint64_t budget = 190; budget <= 3000; budget += 7) {
        moe_plan_input in = make_input(budget * MIB);
        moe_memory_plan plan;
        uint32_t context = moe_fit_context(&in, session_bytes, NULL);
        assert_int_equal(plan_of(&in, context, &plan), MOE_OK);
        assert_true(context >= 4096 || !leaves_three_quarters(&plan) || context < N_CONTEXT);
        if (context > 4096) {
            assert_true(leaves_three_quarters(&plan));
        }
        if (context < N_CONTEXT) {
            int status = plan_of(&in, context + MOE_KV_PAGE, &plan);
            assert_true(status != MOE_OK || !leaves_three_quarters(&plan));
            n_between += context > 4096;
        }
        assert_true(context >= before);
        before = context;
    }
    assert_int_equal(before, N_CONTEXT);
    assert_true(n_between > 20);
}

/* Below a conversation's length experts are not spared, and what cannot work is the least there is.
 */
static void test_small_budgets(void **state)
{
    (void)state;
    moe_plan_input in = make_input((116 + 1 + 4 + 64) * MIB);
    assert_int_equal(moe_fit_context(&in, session_bytes, NULL), 4032);
    in = make_input((116 + 1 + 4 + 1) * MIB);
    assert_int_equal(moe_fit_context(&in, session_bytes, NULL), MOE_KV_PAGE);
    in = make_input(50 * MIB);
    assert_int_equal(moe_fit_context(&in, session_bytes, NULL), MOE_KV_PAGE);
    in.context = 40;
    assert_int_equal(moe_fit_context(&in, session_bytes, NULL), 40);
}

/* An expert cache of a stated size keeps it, and the context takes what is left. */
static void test_stated_cache(void **state)
{
    (void)state;
    moe_plan_input in = make_input(600 * MIB);
    uint32_t shared = moe_fit_context(&in, session_bytes, NULL);
    options.expert_cache = 64 * MIB;
    uint32_t all = moe_fit_context(&in, session_bytes, NULL);
    moe_memory_plan plan;
    assert_true(all > 2 * shared);
    assert_int_equal(plan_of(&in, all, &plan), MOE_OK);
    assert_int_equal(plan.expert_cache, 64 * MIB);
    assert_int_equal(plan_of(&in, all + MOE_KV_PAGE, &plan), MOE_ERR_BUDGET);
}

/* Several sessions must fit with the context that is chosen. */
static void test_several_sessions(void **state)
{
    (void)state;
    moe_plan_input in = make_input(600 * MIB);
    uint32_t one = moe_fit_context(&in, session_bytes, NULL);
    options.sessions = 8;
    uint32_t eight = moe_fit_context(&in, session_bytes, NULL);
    moe_memory_plan plan;
    assert_int_equal(plan_of(&in, eight, &plan), MOE_OK);
    assert_true(eight < one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_fits),         cmocka_unit_test(test_every_budget),
        cmocka_unit_test(test_small_budgets),    cmocka_unit_test(test_stated_cache),
        cmocka_unit_test(test_several_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
