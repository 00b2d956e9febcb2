/* SPDX-License-Identifier: MIT */
/* Policies from shared objects: the example works like a built-in one, broken ones are refused with
 * the reason. Arguments: the example, then those with a wrong version, a member missing, no policy
 * and no entry point. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <moe/moe.h>
#include <moe/trace.h>

#include "cache/expert_cache.h"

static char **paths;

static void test_example(void **state)
{
    (void)state;
    const moe_policy *policy = NULL;
    void *plugin = NULL;
    moe_error err = {""};
    if (moe_policy_load(&policy, &plugin, paths[0], &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(policy->name, "clock");
    assert_non_null(plugin);
    moe_policy_release(&plugin);
    assert_null(plugin);
}

/* Replayed on a trace; the clock keeps its contract (no faults) and is no better than the bound. */
static void test_example_in_simulation(void **state)
{
    (void)state;
    moe_trace_generator generator;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_generator_init(&generator, "olmoe", NULL), MOE_OK);
    generator.decode_passes = 60;
    generator.n_sequences = 3;
    assert_int_equal(moe_trace_generate(&trace, &generator, NULL), MOE_OK);
    for (uint32_t percent = 1; percent <= 91; percent += 15) {
        for (int per_layer = 0; per_layer < 2; per_layer++) {
            moe_simulation simulation;
            moe_simulation_result clock = {.struct_size = sizeof clock};
            moe_simulation_result bound = {.struct_size = sizeof bound};
            moe_error err = {""};
            moe_simulation_init(&simulation);
            simulation.cache_share = percent < 5 ? 0.03 : percent / 100.0;
            simulation.per_layer = per_layer == 1;
            simulation.policy = paths[0];
            assert_int_equal(moe_simulate(trace, &simulation, &clock, &err), MOE_OK);
            simulation.policy = "belady";
            assert_int_equal(moe_simulate(trace, &simulation, &bound, &err), MOE_OK);
            assert_int_equal(clock.policy_faults, 0);
            assert_int_equal(clock.hits + clock.misses, bound.hits + bound.misses);
            assert_true(clock.misses >= bound.misses);
        }
    }
    moe_trace_close(&trace);
}

static void test_broken(void **state)
{
    (void)state;
    const struct {
        int status;
        const char *message;
    } expected[] = {
        {MOE_ERR_UNSUPPORTED, "built for version 77"},
        {MOE_ERR_UNSUPPORTED, "member 'victim' is missing"},
        {MOE_ERR_UNSUPPORTED, "returned NULL"},
        {MOE_ERR_FORMAT, "does not define moe_policy_plugin()"},
    };
    for (int i = 0; i < 4; i++) {
        const moe_policy *policy = NULL;
        void *plugin = NULL;
        moe_error err = {""};
        int status = moe_policy_load(&policy, &plugin, paths[1 + i], &err);
        if (status != expected[i].status || strstr(err.message, expected[i].message) == NULL) {
            fail_msg("%s: status %d, '%s'", paths[1 + i], status, err.message);
        }
        assert_null(policy);
        assert_null(plugin);
        moe_policy_release(&plugin);
    }
}

/* A policy of the program works as the same one by name does, and is checked as a plug-in is. */
static void test_own(void **state)
{
    (void)state;
    moe_trace_generator generator;
    moe_trace *trace = NULL;
    moe_error err = {""};
    assert_int_equal(moe_trace_generator_init(&generator, "olmoe", NULL), MOE_OK);
    generator.decode_passes = 30;
    assert_int_equal(moe_trace_generate(&trace, &generator, NULL), MOE_OK);
    const moe_policy *lru = NULL;
    void *plugin = NULL;
    assert_int_equal(moe_policy_load(&lru, &plugin, "lru", NULL), MOE_OK);
    moe_simulation simulation;
    moe_simulation_result named = {.struct_size = sizeof named};
    moe_simulation_result own = {.struct_size = sizeof own};
    moe_simulation_init(&simulation);
    simulation.n_slots = 200;
    simulation.policy = "lru";
    assert_int_equal(moe_simulate(trace, &simulation, &named, &err), MOE_OK);
    simulation.policy = "lfru"; /* another one, which own_policy replaces */
    simulation.own_policy = lru;
    assert_int_equal(moe_simulate(trace, &simulation, &own, &err), MOE_OK);
    assert_true(named.hits > 0);
    assert_int_equal(named.hits, own.hits);
    assert_int_equal(named.evictions, own.evictions);
    moe_policy broken = *lru;
    broken.victim = NULL;
    simulation.own_policy = &broken;
    assert_int_equal(moe_simulate(trace, &simulation, &own, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "own_policy: the policy's member 'victim' is missing"));
    moe_trace_close(&trace);
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_engine_options_init(&options);
    options.model_path = "/dev/null";
    options.policy = "lru";
    options.own_policy = lru;
    assert_int_equal(moe_engine_open(&engine, &options, &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "options.policy has no effect beside options.own_policy"));
}

static void test_not_there(void **state)
{
    (void)state;
    const char *names[] = {"./no-such-policy.so", "no-such-policy.so", "/dev/null.so"};
    for (int i = 0; i < 3; i++) {
        const moe_policy *policy = NULL;
        void *plugin = NULL;
        moe_error err = {""};
        assert_int_equal(moe_policy_load(&policy, &plugin, names[i], &err), MOE_ERR_IO);
        assert_non_null(strstr(err.message, ".so"));
        assert_null(plugin);
    }
}

/* A file that is no shared object at all. */
static void test_not_an_object(void **state)
{
    (void)state;
    const char *path = "./test-plugin-text.so";
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("this is no shared object\n", file);
    fclose(file);
    const moe_policy *policy = NULL;
    void *plugin = NULL;
    moe_error err = {""};
    assert_int_equal(moe_policy_load(&policy, &plugin, path, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "test-plugin-text.so"));
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: %s EXAMPLE ABI MEMBER NULL ENTRY\n", argv[0]);
        return 2;
    }
    paths = argv + 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),       cmocka_unit_test(test_example_in_simulation),
        cmocka_unit_test(test_broken),        cmocka_unit_test(test_not_there),
        cmocka_unit_test(test_not_an_object), cmocka_unit_test(test_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
