/* SPDX-License-Identifier: MIT */
/* The expert budget: by hand, against a naive reading of the algorithm, and what must hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "runtime/lab/budget_oracle.h"
#include "runtime/lossy/expert_budget.h"
#include "tests/draft/route_case.h"

static void apply(const moe_expert_budget *budget, moe_route_edit *edit, moe_budget_stats *stats)
{
    float *scratch = malloc(2 * sizeof *scratch * edit->n_expert); /* exact, for the sanitizer */
    assert_non_null(scratch);
    moe_expert_budget_apply(budget, edit, scratch, stats);
    free(scratch);
}

/* Two rows of four experts, s = .75, .5, .5, .25: with B = 2 the list is 0 and (lower id) 1. */
static void test_by_hand(void **state)
{
    (void)state;
    const float probs[8] = {0.5f, 0.125f, 0.25f, 0.125f, 0.25f, 0.375f, 0.25f, 0.125f};
    const bool resident[4] = {false, false, false, true};
    for (uint32_t way = 0; way < 3; way++) {
        uint32_t experts[4] = {0, 2, 1, 0};
        float weights[4] = {0.5f, 0.25f, 0.375f, 0.25f};
        moe_route_edit edit = {.n_rows = 2,
                               .n_expert = 4,
                               .n_used = 2,
                               .experts = experts,
                               .weights = weights,
                               .probs = probs,
                               .resident = resident,
                               .mixing = {.scale = 1.0f}};
        moe_expert_budget budget = {.n_experts = 2,
                                    .resident_is_free = way == 2,
                                    .coverage =
                                        way == 1 ? MOE_BUDGET_TRUNCATE : MOE_BUDGET_SUBSTITUTE};
        moe_budget_stats stats = {0};
        apply(&budget, &edit, &stats);
        assert_int_equal(experts[0], 0);
        assert_int_equal(experts[1], way == 1 ? MOE_EXPERT_NONE : 1);
        assert_true(weights[1] == (way == 1 ? 0.0f : 0.125f));
        assert_true(experts[2] == 1 && experts[3] == 0 && weights[2] == 0.375f);
        assert_true(stats.n_layers == 1 && stats.n_picks == 4);
        assert_true(stats.n_dropped == (way == 1) && stats.n_replaced == (way != 1));
        assert_true(stats.mass_natural == 1.375 && stats.mass_kept == 1.125);
        assert_true(stats.n_experts_natural == 3 && stats.n_experts_used == 2);
    }
}

/* The shortlist as the algorithm's text has it: B times the best that is not yet on it. */
static void naive_list(const moe_expert_budget *budget, const moe_route_edit *edit, bool *listed)
{
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        listed[e] = budget->resident_is_free && edit->resident[e];
    }
    for (uint32_t i = 0; i < budget->n_listed && budget->listed != NULL; i++) {
        listed[budget->listed[i]] = true;
    }
    for (uint32_t b = 0; b < budget->n_experts && budget->listed == NULL; b++) {
        uint32_t best = MOE_EXPERT_NONE;
        float best_score = 0.0f;
        for (uint32_t e = 0; e < edit->n_expert; e++) {
            float score = 0.0f;
            for (uint32_t r = 0; r < edit->n_rows; r++) {
                score += edit->probs[r * edit->n_expert + e];
            }
            score = budget->ranking == MOE_BUDGET_STATIC ? budget->counts[e] : score;
            if (!listed[e] && (best == MOE_EXPERT_NONE || score > best_score)) {
                best = e;
                best_score = score;
            }
        }
        if (best != MOE_EXPERT_NONE) {
            listed[best] = true;
        }
    }
}

static void check_rows(const moe_expert_budget *budget, const route_case *before,
                       const route_case *after, const bool *listed)
{
    uint32_t n = before->edit.n_used;
    for (uint32_t r = 0; r < before->edit.n_rows; r++) {
        uint32_t want[CASE_USED];
        float weights[CASE_USED];
        uint32_t n_off = 0;
        memcpy(want, before->experts + (size_t)r * n, n * sizeof *want);
        memcpy(weights, before->weights + (size_t)r * n, n * sizeof *weights);
        for (uint32_t k = 0; k < n; k++) {
            if (!listed[want[k]]) {
                n_off++;
                want[k] = budget->coverage == MOE_BUDGET_TRUNCATE ? MOE_EXPERT_NONE : want[k];
                weights[k] = 0.0f;
            }
        }
        if (n_off > 0 && budget->coverage == MOE_BUDGET_SUBSTITUTE) {
            (void)case_top(&before->edit, r, listed, want);
            case_weigh(&before->edit, r, want, weights);
        }
        assert_memory_equal(after->experts + (size_t)r * n, want, n * sizeof *want);
        assert_memory_equal(after->weights + (size_t)r * n, weights, n * sizeof *weights);
    }
}

static void check_stats(const route_case *before, const route_case *after, const bool *listed,
                        const moe_budget_stats *stats)
{
    bool was[CASE_EXPERT] = {false};
    bool is[CASE_EXPERT] = {false};
    uint64_t kept = 0;
    double natural = 0.0;
    double held = 0.0;
    uint32_t n_picks = before->edit.n_rows * before->edit.n_used;
    for (uint32_t i = 0; i < n_picks; i++) {
        uint32_t e = before->experts[i];
        double p = before->probs[i / before->edit.n_used * before->edit.n_expert + e];
        was[e] = true;
        kept += listed[e];
        natural += p;
        held += listed[e] ? p : 0.0;
        if (after->experts[i] != MOE_EXPERT_NONE) {
            is[after->experts[i]] = true;
        }
    }
    uint64_t n_was = 0;
    uint64_t n_is = 0;
    for (uint32_t e = 0; e < before->edit.n_expert; e++) {
        n_was += was[e];
        n_is += is[e];
    }
    assert_int_equal(stats->n_picks, n_picks);
    assert_int_equal(stats->n_picks, kept + stats->n_replaced + stats->n_dropped);
    assert_true(stats->n_experts_natural == n_was && stats->n_experts_used == n_is);
    assert_true(fabs(stats->mass_natural - natural) < 1e-9 && stats->mass_kept <= natural + 1e-9);
    assert_true(fabs(stats->mass_kept - held) < 1e-9);
}

static void check_case(moe_random *random)
{
    route_case before, after;
    case_random(&before, random);
    case_copy(&after, &before);
    uint32_t n = before.edit.n_expert;
    float counts[CASE_EXPERT];
    uint32_t outside[CASE_EXPERT];
    for (uint32_t e = 0; e < n; e++) {
        counts[e] = (float)case_below(random, 6);
        outside[e] = case_below(random, n);
    }
    moe_expert_budget budget = {.n_experts = before.edit.n_used +
                                             case_below(random, n - before.edit.n_used + 2),
                                .ranking = (moe_budget_ranking)case_below(random, 2),
                                .coverage = (moe_budget_coverage)case_below(random, 2),
                                .resident_is_free = case_below(random, 3) == 0,
                                .counts = counts,
                                .listed = case_below(random, 4) == 0 ? outside : NULL,
                                .n_listed = case_below(random, n + 1)};
    bool listed[CASE_EXPERT];
    naive_list(&budget, &before.edit, listed);
    moe_budget_stats stats = {0};
    apply(&budget, &after.edit, &stats);
    assert_true(case_is_distinct(&after));
    check_rows(&budget, &before, &after, listed);
    check_stats(&before, &after, listed, &stats);
    bool counted[CASE_EXPERT] = {false};
    uint32_t n_counted = 0;
    for (uint32_t i = 0; i < after.edit.n_rows * after.edit.n_used; i++) {
        uint32_t e = after.experts[i];
        if (e != MOE_EXPERT_NONE && !counted[e] &&
            !(budget.resident_is_free && after.resident[e])) {
            counted[e] = true;
            n_counted++;
        }
    }
    assert_true(budget.listed != NULL || n_counted <= budget.n_experts);
    if (budget.listed == NULL && budget.n_experts >= n) {
        assert_true(case_equal(&before, &after));
    }
}

static void test_random_cases(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 21);
    for (uint32_t i = 0; i < 8000; i++) {
        check_case(&random);
    }
}

/* A larger budget never holds less of the natural mass. */
static void test_mass_is_monotone(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 22);
    for (uint32_t i = 0; i < 500; i++) {
        route_case before, c;
        case_random(&before, &random);
        double last = 0.0;
        for (uint32_t b = before.edit.n_used; b <= before.edit.n_expert; b++) {
            case_copy(&c, &before);
            moe_expert_budget budget = {.n_experts = b, .coverage = MOE_BUDGET_TRUNCATE};
            moe_budget_stats stats = {0};
            apply(&budget, &c.edit, &stats);
            assert_true(stats.mass_kept >= last);
            last = stats.mass_kept;
        }
        assert_true(case_equal(&before, &c));
    }
}

/* Dropped ranks and ids past the end, also on the list from outside. */
static void test_malformed(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 23);
    for (uint32_t i = 0; i < 2000; i++) {
        route_case c;
        case_random(&c, &random);
        uint32_t n_picks = c.edit.n_rows * c.edit.n_used;
        for (uint32_t j = 0; j < n_picks; j += 2) {
            c.experts[j] = i % 2 == 0 ? MOE_EXPERT_NONE : c.edit.n_expert + j;
        }
        const uint32_t outside[3] = {0, c.edit.n_expert, UINT32_MAX};
        moe_expert_budget budget = {.n_experts = i % 40,
                                    .ranking = MOE_BUDGET_STATIC, /* without counts */
                                    .coverage = (moe_budget_coverage)(i / 2 % 2),
                                    .listed = i % 3 == 0 ? outside : NULL,
                                    .n_listed = 3};
        moe_budget_stats stats = {0};
        apply(&budget, &c.edit, &stats);
        assert_int_equal(stats.n_picks, n_picks / 2);
        assert_true(stats.n_replaced + stats.n_dropped <= stats.n_picks);
    }
}

#define OUT_DIM 7

/* sum over rows of |O* - what the listed natural experts give|^2, written out. */
static double naive_error(const moe_route_edit *edit, const float *outs, const bool *listed)
{
    double error = 0.0;
    for (uint32_t r = 0; r < edit->n_rows; r++) {
        for (uint32_t d = 0; d < OUT_DIM; d++) {
            double missing = 0.0;
            for (uint32_t k = 0; k < edit->n_used; k++) {
                uint32_t slot = r * edit->n_used + k;
                uint32_t e = edit->experts[slot];
                if (e < edit->n_expert && !listed[e]) {
                    missing += (double)edit->weights[slot] * (double)outs[slot * OUT_DIM + d];
                }
            }
            error += missing * missing;
        }
    }
    return error;
}

/* The greedy choice over all natural experts that are not listed, by the error itself. */
static uint32_t naive_best(const moe_route_edit *edit, const float *outs, bool *listed)
{
    uint32_t best = MOE_EXPERT_NONE;
    double least = 0.0;
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        if (listed[e] || !case_has(edit->experts, edit->n_rows * edit->n_used, e)) {
            continue;
        }
        listed[e] = true;
        double error = naive_error(edit, outs, listed);
        listed[e] = false;
        if (best == MOE_EXPERT_NONE || error < least) {
            best = e;
            least = error;
        }
    }
    return best;
}

/* Every greedy step is as good as the naive one; the whole list leaves nothing;
 * over all cases the oracle's lists leave less than the router's of the same length. */
static void test_oracle(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 31);
    double oracle_error = 0.0, router_error = 0.0;
    for (uint32_t i = 0; i < 2000; i++) {
        route_case c;
        float outs[CASE_ROWS * CASE_USED * OUT_DIM];
        double gram[CASE_ROWS * CASE_USED * CASE_USED], gain[CASE_EXPERT];
        uint32_t list[CASE_EXPERT];
        bool listed[CASE_EXPERT] = {false};
        case_random(&c, &random);
        uint32_t n_slots = c.edit.n_rows * c.edit.n_used;
        for (uint32_t k = 0; k < n_slots * OUT_DIM; k++) {
            outs[k] = (float)moe_random_uniform(&random) - 0.3f;
        }
        if (i % 3 == 0) { /* a dropped rank's output is anything */
            uint32_t slot = case_below(&random, n_slots);
            c.experts[slot] = MOE_EXPERT_NONE;
            c.weights[slot] = 0.0f;
            outs[slot * OUT_DIM] = NAN;
        }
        uint32_t n = moe_budget_oracle_list(&c.edit, outs, OUT_DIM, gram, gain, list, CASE_EXPERT);
        double error = naive_error(&c.edit, outs, listed);
        for (uint32_t b = 0; b < n; b++) {
            assert_true(list[b] < c.edit.n_expert && !listed[list[b]]);
            uint32_t best = naive_best(&c.edit, outs, listed);
            listed[best] = true;
            double least = naive_error(&c.edit, outs, listed);
            listed[best] = false;
            listed[list[b]] = true;
            double now = naive_error(&c.edit, outs, listed);
            assert_true(now <= least + 1e-9 * (error + 1.0));
        }
        assert_true(naive_error(&c.edit, outs, listed) == 0.0);
        assert_int_equal(naive_best(&c.edit, outs, listed), MOE_EXPERT_NONE);

        moe_expert_budget budget = {.n_experts = c.edit.n_used};
        bool routed[CASE_EXPERT];
        naive_list(&budget, &c.edit, routed);
        memset(listed, 0, sizeof listed);
        n = moe_budget_oracle_list(&c.edit, outs, OUT_DIM, gram, gain, list, c.edit.n_used);
        assert_true(n <= c.edit.n_used);
        for (uint32_t b = 0; b < n; b++) {
            listed[list[b]] = true;
        }
        oracle_error += naive_error(&c.edit, outs, listed);
        router_error += naive_error(&c.edit, outs, routed);
    }
    assert_true(oracle_error < router_error);
}

static void test_relative_error(void **state)
{
    (void)state;
    const float exact[4] = {3, 4, 0, 0};
    const float now[4] = {3, 4, 0, 5};
    const float nothing[4] = {0};
    assert_true(moe_relative_square_error(exact, exact, 2, 2) == 0.0);
    assert_true(moe_relative_square_error(exact, now, 2, 2) == 1.0);
    assert_true(moe_relative_square_error(exact, nothing, 1, 4) == 1.0);
    assert_true(moe_relative_square_error(nothing, now, 1, 4) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),          cmocka_unit_test(test_random_cases),
        cmocka_unit_test(test_mass_is_monotone), cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_oracle),           cmocka_unit_test(test_relative_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
