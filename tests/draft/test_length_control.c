/* SPDX-License-Identifier: MIT */
/* Length control: Cascade's phases step by step against the paper's rules; traces and options of
 * every controller. With the argument -v: a table of the paper's ablations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/draft/length_process.h"

/* One iteration whose utility is utility[K], t_base being 1000. Returns K. */
static uint32_t step(moe_length_control *control, const double *utility)
{
    uint32_t k = moe_length_begin(control, 1);
    moe_length_iteration iteration = {.n_sequences = 1,
                                      .n_drafted = k,
                                      .n_rows = 1 + k,
                                      .n_emitted = 1,
                                      .verify_cost = k == 0 ? 1000 : 1000 / utility[k]};
    moe_length_end(control, &iteration);
    return k;
}

/* Expected: "4x0 4x3": runs of K. */
static void expect_run(moe_length_control *control, const double *utility, const char *expected)
{
    int used = 0;
    unsigned n, k;
    for (; sscanf(expected, " %ux%u%n", &n, &k, &used) == 2; expected += used) {
        for (unsigned i = 0; i < n; i++) {
            assert_int_equal(step(control, utility), k);
        }
    }
}

static void cascade_climbs_by_the_rules(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        double utility[6];
        uint32_t max;
        const char *expected;
    } cases[] = {
        {"falls on the way down: turned, and K = 3 is the ceiling",
         {1, 1.0, 1.2, 2.0},
         3,
         "4x0 4x3 4x2 16x3 4x3 4x2"},
        {"rises on the way down", {1, 1.8, 1.5, 1.2}, 3, "4x0 4x3 4x2 4x1 16x1 4x1"},
        {"within 10 %: no further trial", {1, 2.0, 1.28, 1.2}, 3, "4x0 4x3 4x2 16x2"},
        {"upwards to the ceiling", {1, 1, 1, 1.2, 1.5, 1.9}, 5, "4x0 4x3 4x4 4x5 16x5 4x5"},
        {"turns past what was tried",
         {1, 1.0, 2.5, 2.0, 1.0, 1.0},
         5,
         "4x0 4x3 4x4 4x2 4x1 16x2 4x2"},
        {"off, and S doubled each time",
         {1, 0.9, 0.7, 0.5},
         3,
         "4x0 4x3 4x2 4x1 32x0 4x1 64x0 4x1 128x0 4x1 256x0"},
        {"a ceiling of 1", {1, 1.5}, 1, "4x0 4x1 16x1 4x1 16x1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        moe_length_control *control = length_control_of(MOE_LENGTH_CASCADE, cases[i].max);
        expect_run(control, cases[i].utility, cases[i].expected);
        moe_length_control_free(&control);
    }
}

static void cascade_backs_off_and_recovers(void **state)
{
    (void)state;
    static const double bad[] = {1, 0.9, 0.7, 0.5}, good[] = {1, 1.5, 1.2, 1.1};
    moe_length_control *control = length_control_of(MOE_LENGTH_CASCADE, 3);
    expect_run(control, bad, "4x0 4x3 4x2 4x1 32x0 4x1 64x0");
    expect_run(control, good, "4x1 4x2 16x1");     /* U falls, and below 1 there is no K */
    expect_run(control, bad, "4x1 32x0 4x1 64x0"); /* S starts over */
    moe_length_report report;
    moe_length_get_report(control, &report);
    assert_int_equal(report.n_disabled, 4);
    moe_length_control_free(&control);
}

/* 100 iterations after the baseline, in the midst of a phase that goes on afterwards. */
static void cascade_refreshes_its_baseline(void **state)
{
    (void)state;
    static const double utility[] = {1, 1.5};
    moe_length_control *control = length_control_of(MOE_LENGTH_CASCADE, 1);
    expect_run(control, utility, "4x0 100x1 4x0 100x1 4x0 100x1 4x0");
    moe_length_control_free(&control);
}

static void cascade_ablations_change_what_they_name(void **state)
{
    (void)state;
    static const double bad[] = {1, 0.9, 0.7, 0.5}, near[] = {1, 1.25, 1.22, 1.2};
    moe_length_options options = {.kind = MOE_LENGTH_CASCADE, .max_draft = 3};
    options.no_back_off = true;
    moe_length_control *control = length_control_new(&options);
    expect_run(control, bad, "4x0 4x3 4x2 4x1 16x0 4x1 16x0 4x1 16x0");
    moe_length_control_free(&control);
    options = (moe_length_options){.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .no_disable = true};
    control = length_control_new(&options);
    expect_run(control, bad, "4x0 4x3 4x2 4x1 16x1");
    moe_length_control_free(&control);
    options =
        (moe_length_options){.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .no_early_exit = true};
    control = length_control_new(&options);
    expect_run(control, near, "4x0 4x3 4x2 4x1 16x1");
    moe_length_control_free(&control);
    options = (moe_length_options){
        .kind = MOE_LENGTH_CASCADE, .max_draft = 3, .trial_iterations = 2, .set_iterations = 8};
    control = length_control_new(&options);
    expect_run(control, near, "4x0 2x3 2x2 8x2 2x2");
    moe_length_control_free(&control);
    options = (moe_length_options){.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .no_climb = true};
    control = length_control_new(&options);
    expect_run(control, near, "4x0 4x3 16x3 4x3 16x3");
    moe_length_control_free(&control);
    control = length_control_new(&options);
    expect_run(control, bad, "4x0 4x3 32x0 4x1 64x0");
    moe_length_control_free(&control);
}

static void same_inputs_same_trace(void **state)
{
    (void)state;
    length_process p = length_process_random(7);
    for (int kind = MOE_LENGTH_SURVIVAL; kind <= MOE_LENGTH_STATIC; kind++) {
        moe_length_control *a = length_control_of((moe_length_kind)kind, 6);
        moe_length_control *b = length_control_of((moe_length_kind)kind, 6);
        length_outcome outcome;
        length_process_run(&p, a, &outcome);
        length_process_run(&p, b, &outcome);
        uint64_t n_a, n_b;
        const uint8_t *trace_a = moe_length_trace(a, &n_a), *trace_b = moe_length_trace(b, &n_b);
        assert_int_equal(n_a, N_ITERATIONS);
        assert_int_equal(n_b, N_ITERATIONS);
        assert_memory_equal(trace_a, trace_b, n_a);
        moe_length_control_free(&a);
        moe_length_control_free(&b);
    }
}

static void trace_has_a_byte_an_iteration(void **state)
{
    (void)state;
    static const double utility[] = {1, 1.8, 1.5, 1.2};
    static const uint8_t expected[] = {0, 0, 0, 0, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1};
    moe_length_control *control = length_control_of(MOE_LENGTH_CASCADE, 3);
    for (size_t i = 0; i < sizeof expected; i++) {
        step(control, utility);
    }
    uint64_t n;
    const uint8_t *trace = moe_length_trace(control, &n);
    assert_int_equal(n, sizeof expected);
    assert_memory_equal(trace, expected, sizeof expected);
    moe_length_control_free(&control);
}

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    moe_length_control *control = NULL;
    moe_error err = {""};
    moe_length_options options = {.kind = MOE_LENGTH_STATIC, .max_draft = 256};
    assert_int_equal(moe_length_control_create(&control, &options, &err), MOE_ERR_ARGUMENT);
    assert_null(control);
    assert_non_null(strstr(err.message, "255"));
}

/* The paper's ablations on mixed phases; printed, as only the reader can judge them. */
static void print_ablations(void)
{
    static const struct {
        const char *name;
        moe_length_options options;
    } rows[] = {
        {"cascade", {.kind = MOE_LENGTH_CASCADE, .max_draft = 3}},
        {"t = 2, S = 8",
         {.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .trial_iterations = 2, .set_iterations = 8}},
        {"t = 8, S = 32",
         {.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .trial_iterations = 8, .set_iterations = 32}},
        {"no back-off", {.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .no_back_off = true}},
        {"no early exit", {.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .no_early_exit = true}},
        {"no disable", {.kind = MOE_LENGTH_CASCADE, .max_draft = 3, .no_disable = true}},
        {"static K = 3", {.kind = MOE_LENGTH_STATIC, .max_draft = 3}},
        {"survival", {.kind = MOE_LENGTH_SURVIVAL, .max_draft = 3}},
    };
    print_message("simulated process; speed against plain: hopeless, winning, phases of 60\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double speed[3] = {0, 0, 0};
        for (int which = 0; which < 3; which++) {
            for (uint64_t seed = 1; seed <= 20; seed++) {
                length_process p = {.seed = seed,
                                    .n_iterations = 500,
                                    .fade = 0.9,
                                    .row = 0.4,
                                    .noise = 0.2,
                                    .accept = which == 0 ? 0.0 : 0.9,
                                    .accept_other = 0.1,
                                    .phase = which == 2 ? 60 : 0};
                length_outcome outcome;
                moe_length_control *control = length_control_new(&rows[i].options);
                length_process_run(&p, control, &outcome);
                moe_length_control_free(&control);
                speed[which] += 1 / (1 + outcome.excess) / 20;
            }
        }
        print_message("%-14s %.3f %.3f %.3f\n", rows[i].name, speed[0], speed[1], speed[2]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cascade_climbs_by_the_rules),
        cmocka_unit_test(cascade_backs_off_and_recovers),
        cmocka_unit_test(cascade_refreshes_its_baseline),
        cmocka_unit_test(cascade_ablations_change_what_they_name),
        cmocka_unit_test(same_inputs_same_trace),
        cmocka_unit_test(trace_has_a_byte_an_iteration),
        cmocka_unit_test(options_out_of_range_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "-v") == 0) {
        print_ablations();
    }
    return failed;
}
