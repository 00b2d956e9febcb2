/* SPDX-License-Identifier: MIT */
/* The memory plan: its arithmetic on machines described by the test, and its figures against what
 * engines of a model then hold (the process's peak is test_memory_budget's subject).
 * Usage: test_memory_plan MODEL.gguf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <moe/speed.h>

#include "engine_fixture.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/memory_plan.h"

#define MIB       (UINT64_C(1) << 20)
#define N_LAYER   4
#define N_EXPERT  16
#define N_USED    2
#define N_CONTEXT 256

static const char *model_path;
static moe_engine_options options;
static moe_model_config config;
static moe_tensor_map map;

/* A model with 64 experts of 1 MiB, 20 MiB of other weights, 4 MiB of keys and values; a machine
 * with 10 GiB of which 8 are free. */
static moe_plan_input make_input(void)
{
    moe_engine_options_init(&options);
    config = (moe_model_config){.n_layer = N_LAYER, .n_expert = N_EXPERT, .n_expert_used = N_USED};
    for (uint32_t l = 0; l < N_LAYER; l++) {
        config.layers[l].feed_forward = MOE_FEED_FORWARD_ROUTED;
    }
    map = (moe_tensor_map){.n_layer = N_LAYER, .n_expert = N_EXPERT, .expert_bytes = 64 * MIB};
    return (moe_plan_input){
        .options = &options,
        .config = &config,
        .map = &map,
        .process_bytes = 10 * MIB,
        .available_bytes = 8192 * MIB,
        .limit_bytes = 10240 * MIB,
        .resident_bytes = 20 * MIB,
        .kv = {.n_groups = 1, .page_bytes = {4 * MIB * MOE_KV_PAGE / N_CONTEXT}},
        .scratch_bytes = 6 * MIB,
        .slots = {.full_bytes = 64 * MIB, .slot_bytes = MIB},
        .context = N_CONTEXT,
    };
}

static void default_budget(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan = {.struct_size = sizeof plan};
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_true(plan.budget_is_default);
    assert_int_equal(plan.budget, (10 + 8192 - 1024) * MIB);
    assert_int_equal(plan.expert_slots, 64);
    assert_int_equal(plan.total, (10 + 20 + 4 + 6 + 64) * MIB);
    assert_int_equal(plan.floor, (10 + 20 + 4 + 6 + N_USED) * MIB);
}

/* Whatever the limit of a control group and whatever the process holds already (pages of others
 * among it), the default budget leaves an eighth of the limit, and what does not fit is refused. */
static void small_control_groups(void **state)
{
    (void)state;
    for (uint64_t limit = 0; limit <= 160; limit++) {
        for (uint64_t paid = 0; paid <= 10; paid += 5) {
            moe_plan_input in = make_input();
            moe_memory_plan plan = {.struct_size = sizeof plan};
            moe_error error = {""};
            in.limit_bytes = limit * MIB;
            in.available_bytes = limit > paid ? (limit - paid) * MIB : 0;
            int status = moe_memory_plan_make(&in, &plan, &error);
            assert_true(plan.budget <= in.limit_bytes - in.limit_bytes / 8);
            assert_int_equal(status, plan.budget < plan.floor ? MOE_ERR_BUDGET : MOE_OK);
            if (status == MOE_OK) {
                assert_true(plan.total <= plan.budget);
            } else {
                assert_non_null(strstr(error.message, "below the least that works, 42 MiB"));
                assert_non_null(strstr(error.message, "free some memory"));
            }
        }
    }
}

/* What the program will take comes out of the budget, given or not, and is part of the process. */
static void program_memory(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan = {.struct_size = sizeof plan};
    options.program_memory = 12 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.program, 12 * MIB);
    assert_int_equal(plan.process, (10 + 12) * MIB);
    assert_int_equal(plan.budget, (10 + 8192 - 1024) * MIB);
    options.host_memory = 80 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.expert_slots, 80 - 10 - 12 - 20 - 4 - 6);
    options.host_memory = (10 + 12 + 20 + 4 + 6 + N_USED) * MIB - 1;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_ERR_BUDGET);
}

/* An asked-for cache below what a token uses in one layer: the floor and the remedy are named. */
static void cache_floor(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan = {.struct_size = sizeof plan};
    moe_error error = {""};
    options.expert_cache_share = 0.01;
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "2.0 MiB, 3.2 % of all; raise it"));
    options.expert_cache_share = 0.032;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.expert_slots, N_USED);
}

/* A budget above what machine or control group have is refused, unless that is asked for. */
static void more_than_there_is(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan;
    moe_error error = {""};
    in.limit_bytes = 200 * MIB;
    options.host_memory = 176 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "176 MiB is more than there is"));
    assert_non_null(strstr(error.message, "200 MiB, of which 175 MiB"));
    assert_int_equal(plan.available, 175 * MIB);
    options.overcommit_memory = 1;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    options.overcommit_memory = 0;
    options.host_memory = 175 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    in.limit_bytes = UINT64_MAX; /* not known */
    options.host_memory = UINT64_C(1) << 60;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
}

/* What fills a budget that is too small is named, with what would take less. */
static void what_fills(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan;
    moe_error error = {""};
    options.host_memory = 41 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "raise the memory budget"));
    in.scratch_bytes = 30 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "a smaller prefill chunk needs less"));
    in.scratch_bytes = 6 * MIB;
    in.kv.page_bytes[0] *= 8;
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "a smaller context needs less"));
}

/* Sessions beyond the first take free memory, then slots, down to those of a token in one layer. */
static void several_sessions(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan;
    moe_error error = {""};
    in.session_bytes = MIB;
    in.slots.n_classes = 1;
    options.host_memory = (10 + 20 + 6 + 5 + 60) * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.sessions, 1);
    assert_int_equal(plan.sessions_slots, 60);
    options.sessions = 4;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.expert_slots, 60);
    assert_int_equal(plan.sessions_slots, 60 - 3 * 5);
    assert_int_equal(plan.sessions_bytes, 4 * 5 * MIB);
    options.sessions = 12;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.sessions_slots, 60 - 11 * 5);
    options.sessions = 13;
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "13 sessions of 256 tokens need 60.0 MiB"));
}

/* A simulated device's memory is host memory: it comes out of the host's budget. */
static void simulated_device(void **state)
{
    (void)state;
    moe_plan_input in = make_input();
    moe_memory_plan plan = {.struct_size = sizeof plan};
    in.device_memory = 60 * MIB;
    in.device_scratch_bytes = 3 * MIB;
    in.slots.host_full_bytes = 65 * MIB;
    in.slots.host_slot_bytes = MIB;
    options.host_memory = 130 * MIB;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.device_total, 60 * MIB);
    assert_int_equal(plan.device_in_host, 0);
    assert_int_equal(plan.total, (10 + 6 + 65) * MIB);
    in.simulated = true;
    assert_int_equal(moe_memory_plan_make(&in, &plan, NULL), MOE_OK);
    assert_int_equal(plan.device_in_host, plan.device_total);
    assert_int_equal(plan.host_cache, (130 - 60 - 10 - 6) * MIB);
    assert_int_equal(plan.total, 130 * MIB);
    options.host_memory = plan.floor - 1;
    moe_error error = {""};
    assert_int_equal(moe_memory_plan_make(&in, &plan, &error), MOE_ERR_BUDGET);
    assert_non_null(strstr(error.message, "simulated device"));
}

/* ---- Speed ---- */

static bool nearly(double a, double b)
{
    return a - b < 1e-9 * b && b - a < 1e-9 * b;
}

/* 8 MB of experts a token, of which a quarter is missing; behind a link half of that is in RAM. */
static void speed(void **state)
{
    (void)state;
    moe_memory_plan plan = {.struct_size = sizeof plan,
                            .expected_hit_rate = 0.75,
                            .expected_memory_hit_rate = 0.75,
                            .token_expert_bytes = 8000000};
    moe_speed_rates rates = {.struct_size = sizeof rates};
    moe_speed_estimate e = {.struct_size = sizeof e};
    moe_plan_speed(&plan, &rates, &e);
    assert_true(e.disk_bytes == 2000000 && e.link_bytes == 0);
    assert_true(!e.complete && e.tokens_per_s == 0.0);
    rates.disk_bytes_per_s = 1e9;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(!e.complete && nearly(e.tokens_per_s, 500.0));
    rates.compute_s_per_token = 0.003;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(e.complete && nearly(e.tokens_per_s, 200.0));
    /* Two experts of 1 MB are missing. Each takes 0.5 ms beyond its bytes; or more of their reading
     * than there is hides behind computing. */
    plan.expert_bytes = 64000000;
    plan.experts = 64;
    rates.wait_s_per_expert = 0.0005;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(nearly(e.disk_s, 0.003) && nearly(e.tokens_per_s, 1.0 / 0.006));
    rates.wait_s_per_expert = -0.002;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(e.disk_s == 0.0 && nearly(e.tokens_per_s, 1.0 / 0.003));
    rates.wait_s_per_expert = 0.0;
    plan.has_device_memory = true;
    plan.expected_memory_hit_rate = 0.875;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(!e.complete && e.link_bytes == 2000000 && e.disk_bytes == 1000000);
    rates.link_bytes_per_s = 2e9;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(e.complete && nearly(e.tokens_per_s, 200.0));
    /* Nothing is missing: neither disk nor link is needed. */
    plan.expected_hit_rate = plan.expected_memory_hit_rate = 1.0;
    rates.disk_bytes_per_s = rates.link_bytes_per_s = 0.0;
    moe_plan_speed(&plan, &rates, &e);
    assert_true(e.complete && e.disk_bytes + e.link_bytes == 0);
    assert_true(nearly(e.tokens_per_s, 1.0 / 0.003));
}

/* ---- Against engines ---- */

static bool within(uint64_t planned, uint64_t held, uint64_t granule)
{
    double tolerance = 0.02 * (double)planned + (double)granule;
    double difference = (double)planned - (double)held;
    return difference <= tolerance && difference >= -0.02 * (double)planned;
}

/* A session fills its context, so that keys, values and slots are all there. */
static void fill(moe_engine *engine)
{
    moe_engine_info info = {.struct_size = sizeof info};
    int32_t tokens[N_CONTEXT];
    moe_engine_get_info(engine, &info);
    make_prompt(tokens, N_CONTEXT, info.n_vocab, 4);
    moe_session *session = greedy_session(engine);
    feed(session, tokens, N_CONTEXT);
    while (moe_session_n_pending(session) > 0) {
        assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
    }
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_expert_store_stats experts;
    moe_engine_get_stats(engine, &stats);
    moe_expert_store_get_stats(engine->runner.experts, &experts);
    const moe_memory_plan *plan = &engine->plan;
    assert_true(within(plan->resident, engine->weights.arena_bytes, 0));
    assert_true(within(plan->kv_cache, moe_kv_pool_bytes(&engine->kv), 0));
    uint64_t slot = experts.slot_bytes_total / experts.n_slots;
    assert_true(experts.slot_bytes_total <= plan->expert_cache);
    assert_true(within(plan->expert_cache, experts.slot_bytes_total, slot));
    if (plan->has_device_memory) {
        slot = experts.host_slot_bytes_total / experts.n_host_slots;
        assert_true(experts.host_slot_bytes_total <= plan->host_cache);
        assert_true(within(plan->host_cache, experts.host_slot_bytes_total, slot));
    }
    uint64_t per_token = plan->expert_bytes / engine->config.n_expert;
    assert_int_equal(plan->token_expert_bytes, per_token * engine->config.n_expert_used);
    print_message("%s, %llu of %llu slots\n", engine->device->name,
                  (unsigned long long)experts.n_slots, (unsigned long long)plan->experts);
    moe_session_close(&session);
}

static void engines_hold_what_is_planned(void **state)
{
    (void)state;
    const char *const devices[] = {"cpu", "sim:memory=1G,link=8GB/s"};
    const double shares[] = {0.15, 0.4, 1.0};
    for (size_t d = 0; d < 2; d++) {
        for (size_t i = 0; i < 3; i++) {
            moe_engine_options o;
            moe_engine_options_init(&o);
            o.model_path = model_path;
            o.device = devices[d];
            o.n_threads = 2;
            o.context = N_CONTEXT;
            o.prefill_chunk = 64;
            o.expert_cache_share = shares[i];
            moe_engine *engine = open_engine(&o);
            fill(engine);
            moe_engine_close(&engine);
            moe_speed_rates rates = {.struct_size = sizeof rates};
            moe_speed_estimate estimate = {.struct_size = sizeof estimate};
            moe_memory_plan plan = {.struct_size = sizeof plan};
            assert_int_equal(moe_plan_memory(&o, &plan, NULL), MOE_OK);
            assert_int_equal(moe_speed_measure(&o, &rates, NULL), MOE_OK);
            moe_plan_speed(&plan, &rates, &estimate);
            assert_true(estimate.complete && estimate.tokens_per_s > 0.0);
            assert_true((rates.link_bytes_per_s == 8e9) == (d == 1));
            assert_true(estimate.disk_bytes == 0 || shares[i] < 1.0);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_memory_plan MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_budget),
        cmocka_unit_test(small_control_groups),
        cmocka_unit_test(program_memory),
        cmocka_unit_test(cache_floor),
        cmocka_unit_test(more_than_there_is),
        cmocka_unit_test(what_fills),
        cmocka_unit_test(several_sessions),
        cmocka_unit_test(simulated_device),
        cmocka_unit_test(speed),
        cmocka_unit_test(engines_hold_what_is_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
