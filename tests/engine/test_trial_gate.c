/* SPDX-License-Identifier: MIT */
/* The gate over simulated costs with noise and outliers: it finds the better way, its trials cost
 * little in the long run, and it notices when the better way changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "runtime/base/random.h"
#include "runtime/pass/trial_gate.h"

#define N_PASSES 20000

static double noisy(double cost, moe_random *random)
{
    double outlier = moe_random_uniform(random) < 0.02 ? 5.0 : 1.0;
    return cost * (0.8 + 0.4 * moe_random_uniform(random)) * outlier;
}

static void note(moe_trial_gate *gate, double ns, double busy, double bytes)
{
    const moe_trial_pass pass = {.work = 1.0, .time_ns = ns, .busy_ns = busy * ns, .bytes = bytes};
    moe_trial_gate_note(gate, &pass);
}

/* Costs without noise of what the gate did, over n passes. */
static double run(moe_trial_gate *gate, double on_cost, uint32_t n, moe_random *random)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        double cost = moe_trial_gate_is_on(gate) ? on_cost : 1.0;
        sum += cost;
        double ns = noisy(cost, random);
        note(gate, ns, 0.3, 1.0);
    }
    return sum / n;
}

static void finds_the_better_way(void **state)
{
    (void)state;
    static const double on_costs[] = {0.5, 0.8, 1.25, 2.0};
    for (size_t i = 0; i < sizeof on_costs / sizeof on_costs[0]; i++) {
        moe_trial_gate gate;
        moe_random random;
        moe_random_seed(&random, i);
        moe_trial_gate_init(&gate);
        double mean = run(&gate, on_costs[i], N_PASSES, &random);
        double best = on_costs[i] < 1.0 ? on_costs[i] : 1.0;
        print_message("on costs %.2f: %.4f a pass, %.2f %% above the better\n", on_costs[i], mean,
                      100 * (mean / best - 1));
        assert_true(mean <= best * 1.02);
    }
}

/* Short runs in which it only costs: on average little, though the first trial is much of them. */
static void short_runs_lose_little(void **state)
{
    (void)state;
    double sum = 0.0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        moe_trial_gate gate;
        moe_random random;
        moe_random_seed(&random, seed);
        moe_trial_gate_init(&gate);
        sum += run(&gate, 1.35, 250, &random);
    }
    print_message("250 passes, on costs 1.35: %.2f %% lost\n", 100 * (sum / 200 - 1));
    assert_true(sum / 200 < 1.025);
}

static void a_tie_is_off(void **state)
{
    (void)state;
    moe_trial_gate gate;
    moe_trial_gate_init(&gate);
    for (int i = 0; i < 1000; i++) {
        note(&gate, 1.0, 0.3, 1.0);
    }
    assert_true(gate.n_trials > 1);
    assert_int_equal(gate.n_held_on, 0);
}

static void no_trial_without_room(void **state)
{
    (void)state;
    moe_trial_gate gate;
    moe_trial_gate_init(&gate);
    for (int i = 0; i < 1000; i++) {
        assert_false(moe_trial_gate_is_on(&gate));
        note(&gate, 1.0, 0.55, 1.0);
    }
    assert_true(gate.n_trials > 1);
    moe_trial_gate_init(&gate);
    uint32_t n_on = 0;
    for (int i = 0; i < 1000; i++) {
        n_on += moe_trial_gate_is_on(&gate);
        double ns = moe_trial_gate_is_on(&gate) ? 0.8 : 1.0;
        note(&gate, ns, 0.3, 1.0);
    }
    assert_true(n_on > 900);
}

/* The share of passes with it, when a pass waits for 0.3 of its time without it. */
static double share_on(double on_cost, double on_bytes)
{
    moe_trial_gate gate;
    moe_trial_gate_init(&gate);
    uint32_t n_on = 0;
    for (int i = 0; i < 1000; i++) {
        bool on = moe_trial_gate_is_on(&gate);
        n_on += on;
        note(&gate, on ? on_cost : 1.0, 0.3, on ? on_bytes : 1.0);
    }
    return n_on / 1000.0;
}

/* It may add bytes if it saves a larger share of the waiting. */
static void pays_for_its_bytes(void **state)
{
    (void)state;
    assert_true(share_on(0.90, 1.0) > 0.9);
    assert_true(share_on(0.90, 1.25) > 0.9);  /* a third of the waiting saved */
    assert_true(share_on(0.90, 1.40) < 0.15); /* ... for 40 % more */
    assert_true(share_on(0.96, 1.05) > 0.9);
    assert_true(share_on(0.96, 1.15) < 0.15);
}

static void notices_changes(void **state)
{
    (void)state;
    moe_trial_gate gate;
    moe_random random;
    moe_random_seed(&random, 9);
    moe_trial_gate_init(&gate);
    (void)run(&gate, 0.6, N_PASSES / 2, &random);
    assert_true(gate.on);
    double mean = run(&gate, 1.6, N_PASSES / 2, &random);
    assert_false(gate.on);
    assert_true(mean < 1.1); /* at most one long hold at 1.6 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_better_way), cmocka_unit_test(short_runs_lose_little),
        cmocka_unit_test(a_tie_is_off),         cmocka_unit_test(no_trial_without_room),
        cmocka_unit_test(pays_for_its_bytes),   cmocka_unit_test(notices_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
