/* SPDX-License-Identifier: MIT */
/* Forecasts: the expected wait against sums done by hand, lfru with a perfect draft against Belady,
 * drafts that know nothing or are wrong, and policies that take no forecasts. With an argument:
 * also a recorded trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/trace.h>

#include "cache/expert_cache.h"
#include "cache/forecast_table.h"
#include "tests/cache/random_stream.h"

static const char *recorded_path; /* or NULL */

/* ---- The expected wait ---- */

#define assert_near(a, b, within) assert_true(fabs((a) - (b)) <= (within))

static void test_wait(void **state)
{
    (void)state;
    moe_forecast_table table;
    moe_forecast_table_init(&table, 2, 4);
    assert_near(moe_forecast_table_wait(&table, 0, 5, 0.25), 3, 1e-12);
    /* Passes 10 and 12; nothing of pass 11, nor of layer 1. */
    const moe_policy_forecast uses[] = {{0, 1.0f, 10}, {1, 0.5f, 10}, {2, 1.0f, 12}};
    moe_forecast_table_set(&table, 10, uses, 3);
    assert_near(moe_forecast_table_wait(&table, 0, 10, 0.25), 0, 1e-12);
    assert_near(moe_forecast_table_wait(&table, 2, 12, 0.25), 0, 1e-12);
    /* Key 2 from pass 10: not named there (chance .25 x (1 - .75)), not named in 11 (.25), then
     * certain. */
    double first = 0.25 * (1 - 0.75);
    double second = 0.25;
    double expected = (1 - first) * second * 1 + (1 - first) * (1 - second) * 2;
    assert_near(moe_forecast_table_wait(&table, 2, 10, 0.25), expected, 1e-6);
    /* Layer 1 has no forecasts: the past alone, whatever the window. */
    assert_near(moe_forecast_table_wait(&table, 5, 10, 0.25), 3, 1e-12);
    /* Past the window, and before it. */
    assert_near(moe_forecast_table_wait(&table, 0, 13, 0.25), 3, 1e-12);
    assert_near(moe_forecast_table_wait(&table, 0, 3, 0.25), 0, 1e-12);
    moe_forecast_table_set(&table, 20, NULL, 0);
    assert_near(moe_forecast_table_wait(&table, 0, 10, 0.25), 3, 1e-12);
    moe_forecast_table_release(&table);
}

/* Numbers out of range are left out, or are taken for certainty: a plug-in's caller may err. */
static void test_hostile_forecasts(void **state)
{
    (void)state;
    moe_forecast_table table;
    moe_forecast_table_init(&table, 1, 4);
    const moe_policy_forecast uses[] = {{9, 1.0f, 10},   {1, 7.0f, 10},       {2, 0.5f, 9},
                                        {3, 0.5f, 1000}, {UINT32_MAX, 1, 10}, {0, 0.5f, 11}};
    moe_forecast_table_set(&table, 10, uses, sizeof uses / sizeof uses[0]);
    assert_int_equal(table.n_passes, 2);
    assert_near(moe_forecast_table_wait(&table, 1, 10, 0.5), 0, 1e-12);
    moe_forecast_table_release(&table);
}

/* ---- Simulations ---- */

static moe_trace *generated(uint32_t n_layer, uint32_t n_sequences, uint32_t passes, uint64_t seed)
{
    moe_trace_generator generator;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_generator_init(&generator, "olmoe", NULL), MOE_OK);
    generator.n_layer = n_layer;
    generator.n_sequences = n_sequences;
    generator.decode_passes = passes;
    generator.seed = seed;
    assert_int_equal(moe_trace_generate(&trace, &generator, NULL), MOE_OK);
    return trace;
}

static moe_simulation options_of(const char *policy, double share, int32_t lookahead)
{
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = policy;
    simulation.cache_share = share;
    simulation.lookahead = lookahead;
    return simulation;
}

static uint64_t hits(const moe_trace *trace, const moe_simulation *simulation)
{
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_error err = {""};
    if (moe_simulate(trace, simulation, &result, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return result.hits;
}

/* A draft that is always right and sees to the end evicts as Belady does. */
static void test_perfect_is_belady(void **state)
{
    (void)state;
    for (uint32_t n_sequences = 1; n_sequences <= 4; n_sequences += 3) {
        moe_trace *trace = generated(4, n_sequences, 30, 3 + n_sequences);
        for (double share = 0.05; share < 0.9; share += 0.2) {
            for (int per_layer = 0; per_layer < 2; per_layer++) {
                moe_simulation bound = options_of("belady", share, -1);
                moe_simulation ahead = options_of("lfru", share, 31);
                ahead.lookahead_stands = ahead.lookahead_recall = 1;
                bound.per_layer = ahead.per_layer = per_layer == 1;
                assert_int_equal(hits(trace, &ahead), hits(trace, &bound));
            }
        }
        moe_trace_close(&trace);
    }
}

/* A draft that never names an expert changes nothing. */
static void test_nothing_named(void **state)
{
    (void)state;
    moe_trace *trace = generated(4, 2, 200, 5);
    moe_simulation plain = options_of("lfru", 0.25, -1);
    moe_simulation ahead = options_of("lfru", 0.25, 4);
    ahead.lookahead_recall = ahead.lookahead_recall_wrong = 0;
    assert_int_equal(hits(trace, &ahead), hits(trace, &plain));
    moe_trace_close(&trace);
}

/* More of the future never hurts much, and the rates that drafts have help. */
static void check_rates(const moe_trace *trace, double least_gain)
{
    for (double share = 0.1; share < 0.6; share += 0.2) {
        moe_simulation plain = options_of("lfru", share, -1);
        double before = (double)hits(trace, &plain);
        double plain_hits = before;
        for (int32_t n = 0; n <= 8; n += 2) {
            moe_simulation ahead = options_of("lfru", share, n);
            double now = (double)hits(trace, &ahead);
            assert_true(now >= 0.995 * before);
            before = now;
        }
        assert_true(before >= plain_hits * (1 + least_gain));
    }
}

static void test_rates(void **state)
{
    (void)state;
    moe_trace *trace = generated(8, 1, 300, 7);
    check_rates(trace, 0.01);
    moe_trace_close(&trace);
}

static void test_recorded(void **state)
{
    (void)state;
    if (recorded_path == NULL || access(recorded_path, R_OK) != 0) {
        skip();
    }
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = recorded_path;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_open(&trace, &options, NULL), MOE_OK);
    check_rates(trace, 0.04);
    moe_trace_close(&trace);
}

/* A trace that recorded what was coming is replayed with it: all hits that Belady has. */
static void test_recorded_forecasts(void **state)
{
    (void)state;
    char path[] = "/tmp/moe-lookahead-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    enum { N_PASSES = 20, N_EXPERT = 8 };
    test_random random = {5};
    uint32_t experts[N_PASSES][2];
    for (int pass = 0; pass < N_PASSES; pass++) {
        experts[pass][0] = test_random_below(&random, N_EXPERT);
        experts[pass][1] = test_random_below(&random, N_EXPERT);
    }
    for (int pass = 0; pass < N_PASSES; pass++) {
        fprintf(file, "{\"layers\": [[%u], [%u]], \"ahead\": [", experts[pass][0],
                experts[pass][1]);
        for (int later = pass; later < N_PASSES; later++) {
            fprintf(file, "%s[%d, 0, %u, 1], [%d, 1, %u, 1]", later == pass ? "" : ", ",
                    later - pass, experts[later][0], later - pass, experts[later][1]);
        }
        fputs("]}\n", file);
    }
    assert_int_equal(fclose(file), 0);
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = path;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_open(&trace, &options, NULL), MOE_OK);
    moe_simulation bound = options_of("belady", 0.25, MOE_LOOKAHEAD_NONE);
    moe_simulation past = options_of("lfru", 0.25, MOE_LOOKAHEAD_NONE);
    moe_simulation ahead = options_of("lfru", 0.25, MOE_LOOKAHEAD_RECORDED);
    assert_int_equal(hits(trace, &ahead), hits(trace, &bound));
    assert_true(hits(trace, &past) < hits(trace, &bound));
    moe_trace_close(&trace);
    unlink(path);
}

static void test_refusals(void **state)
{
    (void)state;
    moe_trace *trace = generated(2, 1, 20, 1);
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_error err = {""};
    moe_simulation blind = options_of("lru", 0.25, 2);
    assert_int_equal(moe_simulate(trace, &blind, &result, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'lru' looks at the past alone"));
    moe_simulation far = options_of("lfru", 0.25, 32);
    assert_int_equal(moe_simulate(trace, &far, &result, &err), MOE_ERR_ARGUMENT);
    moe_simulation unrecorded = options_of("lfru", 0.25, MOE_LOOKAHEAD_RECORDED);
    assert_int_equal(moe_simulate(trace, &unrecorded, &result, &err), MOE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no recorded forecasts"));
    moe_simulation rate = options_of("lfru", 0.25, 2);
    rate.lookahead_recall = 1.5;
    assert_int_equal(moe_simulate(trace, &rate, &result, &err), MOE_ERR_ARGUMENT);
    moe_trace_close(&trace);
}

/* A plug-in built before forecasts existed has no such member: what lies there is not called. */
static void test_older_plugin(void **state)
{
    (void)state;
    moe_policy older = {.abi = 1};
    memset(&older.lookahead, 0x5a, sizeof older.lookahead);
    assert_false(moe_policy_looks_ahead(&older));
    older.abi = MOE_POLICY_ABI;
    assert_true(moe_policy_looks_ahead(&older));
}

/* ---- The cache, told lies ---- */

/* Forecasts drawn at random, most of them wrong: every access still gets a slot, and the cache
 * stays whole. */
static void test_lies(void **state)
{
    (void)state;
    enum { N_LAYER = 3, N_EXPERT = 16, N_SLOTS = 12, N_LIES = 40 };
    const moe_policy *policy = NULL;
    void *plugin = NULL;
    assert_int_equal(moe_policy_load(&policy, &plugin, "lfru", NULL), MOE_OK);
    assert_true(moe_policy_looks_ahead(policy));
    for (int per_layer = 0; per_layer < 2; per_layer++) {
        uint32_t n_slots = N_SLOTS;
        moe_expert_cache_options options = {.n_layer = N_LAYER,
                                            .n_expert = N_EXPERT,
                                            .n_expert_used = 2,
                                            .n_classes = 1,
                                            .slots_of_class = &n_slots,
                                            .per_layer = per_layer == 1,
                                            .policy = policy};
        moe_expert_cache *cache = NULL;
        assert_int_equal(moe_expert_cache_create(&cache, &options, NULL), MOE_OK);
        test_random random = {11};
        for (uint64_t pass = 0; pass < 200; pass++) {
            moe_policy_forecast lies[N_LIES];
            for (size_t i = 0; i < N_LIES; i++) {
                lies[i] = (moe_policy_forecast){test_random_below(&random, N_LAYER * N_EXPERT + 4),
                                                1.0f, pass + test_random_below(&random, 40)};
            }
            moe_expert_cache_lookahead(cache, pass, lies, pass % 3 == 0 ? 0 : N_LIES);
            for (uint32_t layer = 0; layer < N_LAYER; layer++) {
                moe_policy_access access = {.pass = pass, .layer = layer, .n_rows = 1};
                uint32_t key = layer * N_EXPERT + test_random_below(&random, N_EXPERT);
                uint32_t evicted;
                bool hit;
                assert_int_not_equal(moe_expert_cache_access(cache, key, &access, &hit, &evicted),
                                     MOE_SLOT_NONE);
            }
            moe_expert_cache_end_pass(cache, pass);
            assert_true(moe_expert_cache_is_sane(cache));
        }
        moe_expert_cache_stats stats;
        moe_expert_cache_get_stats(cache, &stats);
        assert_int_equal(stats.policy_faults, 0);
        moe_expert_cache_destroy(&cache);
    }
    moe_policy_release(&plugin);
}

int main(int argc, char **argv)
{
    recorded_path = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_hostile_forecasts),
        cmocka_unit_test(test_perfect_is_belady),
        cmocka_unit_test(test_nothing_named),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_recorded_forecasts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_older_plugin),
        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
