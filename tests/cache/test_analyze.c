/* SPDX-License-Identifier: MIT */
/* Analysis of traces that can be counted by hand, and the figures of generated ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <moe/trace.h>

#include "cache/trace_rows.h"

static void assert_near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance)) {
        fail_msg("%.9g instead of %.9g", a, b);
    }
}

static void add_row(moe_trace *trace, uint32_t sequence, bool new_pass, uint16_t a, uint16_t b)
{
    const uint16_t ids[2] = {a, b};
    assert_int_equal(moe_trace_add_row(trace, new_pass, 0, sequence), MOE_OK);
    assert_int_equal(moe_trace_add_list(trace, NULL, NULL, 0), MOE_OK); /* a dense layer */
    assert_int_equal(moe_trace_add_list(trace, ids, NULL, 2), MOE_OK);
}

static void test_by_hand(void **state)
{
    (void)state;
    moe_trace *trace = moe_trace_new(2, 8, false);
    add_row(trace, 0, true, 0, 1);
    add_row(trace, 7, false, 4, 5); /* another sequence: nobody's neighbour here */
    add_row(trace, 0, true, 1, 2);
    add_row(trace, 7, false, 4, 5);
    add_row(trace, 0, true, 0, 1);
    assert_int_equal(moe_trace_finish(trace, NULL), MOE_OK);
    moe_analysis *a = NULL;
    assert_int_equal(moe_analyze(&a, trace, 1, NULL), MOE_OK);
    const moe_layer_analysis *l = &a->layers[1];
    /* Neighbours: 01-12 share 1 of 2, 12-01 share 1, 45-45 share 2. */
    assert_near(l->overlap[0], 4.0 / 6, 1e-12);
    assert_near(l->overlap[1], 2.0 / 2, 1e-12); /* 01 and 01 */
    assert_near(l->overlap[2], -1, 0);
    assert_near(l->unique[0], 2, 1e-12);
    assert_near(l->unique[1], (3 + 3 + 2) / 3.0, 1e-12);
    assert_near(l->unique[2], 3, 1e-12);
    assert_near(l->unique[3], -1, 0);
    /* Frequencies of 0, 1, 2, 4, 5: 2, 3, 1, 2, 2 of 5 rows. */
    assert_near(l->overlap_independent, (4 + 9 + 1 + 4 + 4) / 25.0 / 2, 1e-12);
    assert_near(l->overlap_uniform, 0.25, 1e-12);
    assert_near(l->unique_independent[1], 3 * (1 - 0.6 * 0.6) + (1 - 0.4 * 0.4) + (1 - 0.8 * 0.8),
                1e-12);
    assert_near(l->unique_uniform[1], 8 * (1 - 0.75 * 0.75), 1e-12);
    assert_near(l->skewness, 0.5, 1e-12); /* the first two of eight: 3 + 2 of 10 */
    assert_near(a->coverage[0], 0.3, 1e-12);
    assert_near(a->coverage[4], 1, 1e-12);
    assert_near(a->coverage[7], 1, 1e-12);
    /* Pairs 01 and 45 stand twice; expected: 5 rows x 2 x 1 / (8 x 7). */
    assert_near(l->concentration, 2 / (5 * 2.0 / 56), 1e-9);
    assert_int_equal(a->pairs[0 * 8 + 1], 2);
    assert_int_equal(a->pairs[1 * 8 + 0], 2);
    assert_int_equal(a->pairs[1 * 8 + 2], 1);
    assert_int_equal(a->pairs[1 * 8 + 1], 3);
    assert_int_equal(a->counts[8 + 1], 3);
    /* The dense layer is in no mean. */
    assert_memory_equal(&a->mean, l, sizeof *l);
    assert_near(moe_analysis_amdahl(a, 0.3, 1), 1, 1e-12);
    assert_near(moe_analysis_amdahl(a, 0.3, 3), 0.3 * 3 / 2 + 0.7, 1e-12);
    assert_near(moe_analysis_amdahl(a, 0.3, 4), -1, 0);
    assert_near(moe_analysis_amdahl(a, 0.3, 0), -1, 0);
    moe_analysis_free(&a);
    assert_null(a);
    moe_error err = {""};
    assert_int_equal(moe_analyze(&a, trace, 2, &err), MOE_ERR_ARGUMENT);
    moe_trace_close(&trace);
}

static moe_analysis *analyze_generated(const moe_trace_generator *generator)
{
    moe_trace *trace = NULL;
    moe_analysis *analysis = NULL;
    assert_int_equal(moe_trace_generate(&trace, generator, NULL), MOE_OK);
    assert_int_equal(moe_analyze(&analysis, trace, 0, NULL), MOE_OK);
    moe_trace_close(&trace);
    return analysis;
}

/* Noise alone: the trace must be what the uniform formulas say. */
static void test_uniform_generator(void **state)
{
    (void)state;
    moe_trace_generator generator;
    assert_int_equal(moe_trace_generator_init(&generator, "olmoe", NULL), MOE_OK);
    generator.popular = generator.slow = generator.fast = 0;
    generator.noise = 1;
    generator.decode_passes = 400;
    moe_analysis *a = analyze_generated(&generator);
    for (int d = 0; d < MOE_ANALYSIS_DISTANCES; d++) {
        assert_near(a->mean.overlap[d], 0.125, 0.006);
    }
    for (int b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
        assert_near(a->mean.unique[b], a->mean.unique_uniform[b], 0.3);
    }
    moe_analysis_free(&a);
    /* Popularity alone: the same experts in every row. */
    generator.popular = 1;
    generator.noise = 0;
    a = analyze_generated(&generator);
    assert_near(a->mean.overlap[7], 1, 0);
    assert_near(a->mean.unique[15], 8, 0);
    moe_analysis_free(&a);
}

/* Reuse from one token to the next as reported of the models: .435 in the recorded trace of OLMoE,
 * .45 of Qwen3-30B-A3B. The presets meet them within .03. */
static void test_presets(void **state)
{
    (void)state;
    const struct {
        const char *name;
        double reuse;
    } presets[] = {{"olmoe", 0.435}, {"qwen3", 0.45}};
    for (size_t i = 0; i < 2; i++) {
        for (uint64_t seed = 0; seed < 3; seed++) {
            moe_trace_generator generator;
            assert_int_equal(moe_trace_generator_init(&generator, presets[i].name, NULL), MOE_OK);
            generator.decode_passes = 250;
            generator.seed = seed;
            moe_analysis *a = analyze_generated(&generator);
            assert_near(a->mean.overlap[0], presets[i].reuse, 0.03);
            assert_true(a->mean.overlap[7] < a->mean.overlap[0]);
            assert_true(a->mean.unique[7] < a->mean.unique_independent[7]);
            moe_analysis_free(&a);
        }
    }
}

/* Of 512 experts: LRU holds about 36 % where the bound is 62 %, at a twentieth of the experts. */
static void test_512(void **state)
{
    (void)state;
    moe_trace_generator generator;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_generator_init(&generator, "512", NULL), MOE_OK);
    generator.n_layer = 24;
    generator.decode_passes = 150;
    assert_int_equal(moe_trace_generate(&trace, &generator, NULL), MOE_OK);
    const struct {
        const char *policy;
        double hit_rate;
    } cases[] = {{"lru", 0.36}, {"belady", 0.62}};
    for (size_t i = 0; i < 2; i++) {
        moe_simulation simulation;
        moe_simulation_result result = {.struct_size = sizeof result};
        moe_simulation_init(&simulation);
        simulation.policy = cases[i].policy;
        simulation.cache_share = 0.05;
        simulation.warm_up = 20;
        assert_int_equal(moe_simulate(trace, &simulation, &result, NULL), MOE_OK);
        assert_near(result.hit_rate, cases[i].hit_rate, 0.06);
    }
    moe_trace_close(&trace);
}

static void test_generator_is_seeded(void **state)
{
    (void)state;
    moe_trace_generator generator;
    moe_trace *traces[3];
    assert_int_equal(moe_trace_generator_init(&generator, "olmoe", NULL), MOE_OK);
    generator.decode_passes = 20;
    for (int i = 0; i < 3; i++) {
        generator.seed = i / 2;
        assert_int_equal(moe_trace_generate(&traces[i], &generator, NULL), MOE_OK);
    }
    assert_memory_equal(traces[0]->ids, traces[1]->ids, traces[0]->n_ids * sizeof(uint16_t));
    assert_memory_not_equal(traces[0]->ids, traces[2]->ids, traces[0]->n_ids * sizeof(uint16_t));
    for (size_t i = 0; i < traces[0]->n_ids; i++) {
        assert_true(traces[0]->gates[i] > 0 && traces[0]->gates[i] < 1);
    }
    for (int i = 0; i < 3; i++) {
        moe_trace_close(&traces[i]);
    }
}

static void test_refused_generators(void **state)
{
    (void)state;
    moe_trace_generator good;
    moe_trace *trace = NULL;
    moe_error err = {""};
    assert_int_equal(moe_trace_generator_init(&good, "gpt", &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "olmoe, qwen3, 512, kimi or flame"));
    assert_int_equal(moe_trace_generator_init(&good, "olmoe", NULL), MOE_OK);
    moe_trace_generator bad[8];
    for (size_t i = 0; i < 8; i++) {
        bad[i] = good;
    }
    bad[0].n_layer = 0;
    bad[1].n_expert_used = 65;
    bad[2].n_layer = bad[2].n_expert = 4096;
    bad[3].decode_passes = 0;
    bad[4].decode_passes = 4000000000u;
    bad[5].fast_rho = 1.5;
    bad[6].noise = NAN;
    bad[7].struct_size = 0;
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(moe_trace_generate(&trace, &bad[i], &err), MOE_ERR_ARGUMENT);
        assert_null(trace);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_uniform_generator),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_512),
        cmocka_unit_test(test_generator_is_seeded),
        cmocka_unit_test(test_refused_generators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
