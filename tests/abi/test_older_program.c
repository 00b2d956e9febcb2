/* SPDX-License-Identifier: MIT */
/* A program compiled against older headers and linked with today's shared library: its structs are
 * smaller. A guard behind each struct that the library fills must stay unchanged. Argument: a
 * model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "older_moe.h"

#define GUARD UINT64_C(0x5ca1ab1e0ddba11)
#define GUARDED(type)                                                                              \
    struct {                                                                                       \
        type it;                                                                                   \
        uint64_t guard[64];                                                                        \
    }

static const char *model_path;

static void set_guard(uint64_t guard[64])
{
    for (int i = 0; i < 64; i++) {
        guard[i] = GUARD;
    }
}

static void check_guard(const uint64_t guard[64])
{
    for (int i = 0; i < 64; i++) {
        assert_true(guard[i] == GUARD);
    }
}

static void old_options(old_engine_options *options)
{
    GUARDED(old_engine_options) own;
    set_guard(own.guard);
    moe_engine_options_init_sized(&own.it, sizeof own.it);
    check_guard(own.guard);
    *options = own.it;
    assert_int_equal(options->struct_size, sizeof *options);
    assert_null(options->device);
    options->model_path = model_path;
    options->device = "cpu";
    options->n_threads = 2;
    options->context = 128;
}

static void writes_tokens(void **state)
{
    (void)state;
    old_engine_options options;
    old_options(&options);
    moe_engine *engine;
    moe_session *session;
    moe_error err = {""};
    assert_int_equal(moe_engine_open(&engine, &options, &err), 0);
    assert_int_equal(moe_session_create(&session, engine, NULL, &err), 0);
    GUARDED(old_sampling) sampling;
    set_guard(sampling.guard);
    moe_sampling_init_sized(&sampling.it, sizeof sampling.it);
    check_guard(sampling.guard);
    assert_true(sampling.it.top_k == 40 && sampling.it.repeat_last == 64);
    sampling.it.temperature = 0;
    assert_int_equal(moe_session_set_sampling(session, &sampling.it, &err), 0);
    int32_t token = 1;
    assert_int_equal(moe_session_feed(session, &token, 1, &err), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(moe_step(engine, &session, 1, &err), 0);
    }
    int32_t tokens[64];
    assert_true(moe_session_take(session, tokens, 64) >= 5);

    GUARDED(old_engine_info) info = {.it = {.struct_size = sizeof info.it}};
    GUARDED(old_engine_stats) stats = {.it = {.struct_size = sizeof stats.it}};
    set_guard(info.guard);
    set_guard(stats.guard);
    assert_int_equal(moe_engine_get_info(engine, &info.it), 0);
    assert_int_equal(moe_engine_get_stats(engine, &stats.it), 0);
    check_guard(info.guard);
    check_guard(stats.guard);
    assert_int_equal(info.it.struct_size, sizeof info.it);
    assert_string_equal(info.it.architecture, "olmoe");
    assert_true(stats.it.passes >= 1 && stats.it.prompt_tokens == 1);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static void plans_and_inspects(void **state)
{
    (void)state;
    old_engine_options options;
    old_options(&options);
    moe_error err = {""};
    moe_file *file;
    GUARDED(old_memory_plan) plan = {.it = {.struct_size = sizeof plan.it}};
    GUARDED(old_file_summary) summary = {.it = {.struct_size = sizeof summary.it}};
    GUARDED(old_file_tensor) tensor = {.it = {.struct_size = sizeof tensor.it}};
    GUARDED(old_storage_speed) speed = {.it = {.struct_size = sizeof speed.it}};
    set_guard(plan.guard);
    set_guard(summary.guard);
    set_guard(tensor.guard);
    set_guard(speed.guard);
    assert_int_equal(moe_plan_memory(&options, &plan.it, &err), 0);
    assert_int_equal(moe_file_open(&file, model_path, &err), 0);
    assert_int_equal(moe_file_get_summary(file, &summary.it), 0);
    assert_int_equal(moe_file_get_tensor(file, 0, &tensor.it), 0);
    old_storage_test test;
    moe_storage_test_init_sized(&test, sizeof test);
    test.path = model_path;
    test.total_bytes = 1 << 20;
    assert_int_equal(moe_storage_measure(&test, &speed.it, &err), 0);
    check_guard(plan.guard);
    check_guard(summary.guard);
    check_guard(tensor.guard);
    check_guard(speed.guard);
    assert_true(plan.it.budget > 0 && summary.it.n_files == 1 && speed.it.bytes_per_s > 0);
    assert_string_not_equal(tensor.it.type, "");
    moe_file_close(&file);
}

static void simulates(void **state)
{
    (void)state;
    moe_error err = {""};
    moe_trace *trace;
    GUARDED(old_trace_generator) generator;
    GUARDED(old_simulation) simulation;
    GUARDED(old_simulation_result) result = {.it = {.struct_size = sizeof result.it}};
    GUARDED(old_trace_info) info = {.it = {.struct_size = sizeof info.it}};
    set_guard(generator.guard);
    set_guard(simulation.guard);
    set_guard(result.guard);
    set_guard(info.guard);
    assert_int_equal(
        moe_trace_generator_init_sized(&generator.it, sizeof generator.it, "olmoe", &err), 0);
    assert_int_equal(moe_trace_generate(&trace, &generator.it, &err), 0);
    assert_int_equal(moe_trace_get_info(trace, &info.it), 0);
    moe_simulation_init_sized(&simulation.it, sizeof simulation.it);
    assert_string_equal(simulation.it.policy, "lfru");
    simulation.it.cache_share = 0.5;
    assert_int_equal(moe_simulate(trace, &simulation.it, &result.it, &err), 0);
    check_guard(generator.guard);
    check_guard(simulation.guard);
    check_guard(result.guard);
    check_guard(info.guard);
    assert_int_equal(info.it.n_expert, 64);
    assert_int_equal(result.it.n_slots, 512); /* half of 16 layers' 64 */
    assert_int_equal(result.it.n_tokens, 512);
    moe_trace_close(&trace);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_tokens),
        cmocka_unit_test(plans_and_inspects),
        cmocka_unit_test(simulates),
    };
    model_path = argc > 1 ? argv[1] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
