/* SPDX-License-Identifier: MIT */
/* Routing of the draft: by hand, against a naive reading of the algorithm, and what must hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/draft/draft_route.h"
#include "tests/draft/route_case.h"

#define NONE MOE_EXPERT_NONE

/* Every order from the expert itself on, upwards and around. */
static void fill_affinity(uint16_t *affinity, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            affinity[i * n + j] = (uint16_t)((i + j) % n);
        }
    }
}

static void random_affinity(uint16_t *affinity, uint32_t n, moe_random *random)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *row = affinity + (size_t)i * n;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t at = case_below(random, j + 1);
            row[j] = row[at];
            row[at] = (uint16_t)j;
        }
    }
}

/* Six experts, 0, 1, 3 and 5 resident, picks 2 and 3: 2 wants 3, which the row has, then takes 5.
 */
static void test_nearest_unused_by_hand(void **state)
{
    (void)state;
    uint16_t affinity[36];
    fill_affinity(affinity, 6);
    affinity[2 * 6 + 1] = 3;
    affinity[2 * 6 + 2] = 5;
    affinity[2 * 6 + 3] = 4;
    float probs[6] = {0.05f, 0.05f, 0.5f, 0.25f, 0.1f, 0.05f};
    bool resident[6] = {true, true, false, true, false, true};
    uint32_t experts[2] = {2, 3};
    float weights[2] = {0.7f, 0.3f};
    moe_route_edit edit = {.n_rows = 1,
                           .n_expert = 6,
                           .n_used = 2,
                           .experts = experts,
                           .weights = weights,
                           .probs = probs,
                           .resident = resident,
                           .mixing = {.renormalise = true, .scale = 1.0f}};
    moe_draft_routing routing = {.fill = MOE_DRAFT_FILL_AFFINITY, .affinity = affinity};
    moe_draft_route(&routing, &edit);
    assert_int_equal(experts[0], 5);
    assert_int_equal(experts[1], 3);
    assert_true(weights[0] == 0.7f && weights[1] == 0.3f);
    /* The router's own choice: 3 (.25), then 0 (.05, the lowest id of three equals). */
    experts[0] = 2;
    routing.fill = MOE_DRAFT_FILL_ROUTER;
    moe_draft_route(&routing, &edit);
    assert_int_equal(experts[0], 3);
    assert_int_equal(experts[1], 0);
    assert_true(weights[0] == 0.25f / (0.25f + 0.05f));
    /* Nothing stands in. */
    experts[0] = 2;
    experts[1] = 3;
    weights[1] = 0.3f;
    routing.fill = MOE_DRAFT_FILL_NONE;
    moe_draft_route(&routing, &edit);
    assert_int_equal(experts[0], NONE);
    assert_int_equal(experts[1], 3);
    assert_true(weights[0] == 0.0f && weights[1] == 0.3f);
}

/* A pick is chosen with the bias and weighed without it. */
static void test_bias_only_chooses(void **state)
{
    (void)state;
    float probs[4] = {0.5f, 0.25f, 0.125f, 0.125f};
    float bias[4] = {0.0f, 0.0f, 0.0f, 1.0f};
    bool resident[4] = {false, true, true, true};
    uint32_t experts[2] = {0, 3};
    float weights[2] = {0.5f, 0.125f};
    moe_route_edit edit = {.n_rows = 1,
                           .n_expert = 4,
                           .n_used = 2,
                           .experts = experts,
                           .weights = weights,
                           .probs = probs,
                           .resident = resident,
                           .mixing = {.scale = 2.0f, .selection_bias = bias}};
    moe_draft_routing routing = {.fill = MOE_DRAFT_FILL_AFFINITY}; /* no table: the router */
    moe_draft_route(&routing, &edit);
    assert_int_equal(experts[0], 3);
    assert_int_equal(experts[1], 1);
    assert_true(weights[0] == 0.25f && weights[1] == 0.5f);
}

/* ---- Against a naive reading ---- */

static void expect_stand_ins(const route_case *before, const route_case *after, uint32_t r,
                             const uint16_t *affinity, moe_draft_fill fill)
{
    uint32_t k_used = before->edit.n_used;
    uint32_t n = before->edit.n_expert;
    uint32_t row[CASE_USED];
    memcpy(row, before->experts + (size_t)r * k_used, k_used * sizeof *row);
    for (uint32_t k = 0; k < k_used; k++) {
        uint32_t got = after->experts[r * k_used + k];
        float weight = after->weights[r * k_used + k];
        if (!before->resident[row[k]]) {
            uint32_t want = fill == MOE_DRAFT_FILL_RANDOM ? got : NONE;
            for (uint32_t j = n; j-- > 0 && fill == MOE_DRAFT_FILL_AFFINITY;) {
                uint32_t e = affinity[row[k] * n + j];
                want = before->resident[e] && !case_has(row, k_used, e) ? e : want;
            }
            if (fill == MOE_DRAFT_FILL_RANDOM) {
                assert_true(got < n && before->resident[got] && !case_has(row, k_used, got));
            }
            row[k] = want;
        }
        assert_int_equal(got, row[k]);
        assert_true(weight == (row[k] == NONE ? 0.0f : before->weights[r * k_used + k]));
    }
}

static void check_case(moe_random *random, moe_draft_fill fill)
{
    route_case before, after;
    uint16_t affinity[CASE_EXPERT * CASE_EXPERT];
    case_random(&before, random);
    case_copy(&after, &before);
    random_affinity(affinity, before.edit.n_expert, random);
    moe_draft_routing routing = {.fill = fill, .affinity = affinity, .random = random};
    moe_draft_route(&routing, &after.edit);
    assert_true(case_is_distinct(&after));
    uint32_t n_resident = 0;
    for (uint32_t e = 0; e < before.edit.n_expert; e++) {
        n_resident += before.resident[e];
    }
    uint32_t k_used = before.edit.n_used;
    bool redone =
        fill == MOE_DRAFT_FILL_ROUTER || (n_resident <= k_used && fill != MOE_DRAFT_FILL_NONE);
    for (uint32_t r = 0; r < before.edit.n_rows; r++) {
        bool missing = false;
        for (uint32_t k = 0; k < k_used; k++) {
            missing |= !before.resident[before.experts[r * k_used + k]];
            uint32_t e = after.experts[r * k_used + k];
            assert_true(e == NONE || before.resident[e]);
        }
        uint32_t want[CASE_USED];
        float weights[CASE_USED];
        if (missing && !redone) {
            expect_stand_ins(&before, &after, r, affinity, fill);
            continue;
        }
        memcpy(want, before.experts + (size_t)r * k_used, k_used * sizeof *want);
        memcpy(weights, before.weights + (size_t)r * k_used, k_used * sizeof *weights);
        if (missing) {
            (void)case_top(&before.edit, r, before.resident, want);
            case_weigh(&before.edit, r, want, weights);
        }
        assert_memory_equal(after.experts + (size_t)r * k_used, want, k_used * sizeof *want);
        assert_memory_equal(after.weights + (size_t)r * k_used, weights, k_used * sizeof *weights);
    }
}

static void test_random_cases(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 11);
    for (uint32_t i = 0; i < 8000; i++) {
        check_case(&random, (moe_draft_fill)(i % 4));
    }
}

/* Each of the three that may stand in comes a third of the time: chi-square, 2 degrees, p = 1e-4.
 */
static void test_random_fill_is_uniform(void **state)
{
    (void)state;
    float probs[6] = {0.3f, 0.3f, 0.1f, 0.1f, 0.1f, 0.1f};
    bool resident[6] = {false, true, true, false, true, true};
    moe_random random;
    moe_random_seed(&random, 5);
    double seen[6] = {0};
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t experts[2] = {0, 1};
        float weights[2] = {0.5f, 0.5f};
        moe_route_edit edit = {.n_rows = 1,
                               .n_expert = 6,
                               .n_used = 2,
                               .experts = experts,
                               .weights = weights,
                               .probs = probs,
                               .resident = resident,
                               .mixing = {.scale = 1.0f}};
        moe_draft_routing routing = {.fill = MOE_DRAFT_FILL_RANDOM, .random = &random};
        moe_draft_route(&routing, &edit);
        seen[experts[0]]++;
    }
    double x = 0.0;
    const uint32_t may[3] = {2, 4, 5};
    for (uint32_t i = 0; i < 3; i++) {
        x += (seen[may[i]] - 1000.0) * (seen[may[i]] - 1000.0) / 1000.0;
    }
    assert_true(x < 18.4);
    assert_true(seen[0] + seen[1] + seen[3] == 0.0);
}

/* Ranks that an editor before dropped, ids past the end and a broken table do no harm. */
static void test_malformed(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 3);
    uint16_t affinity[CASE_EXPERT * CASE_EXPERT];
    for (uint32_t i = 0; i < 2000; i++) {
        route_case c;
        case_random(&c, &random);
        for (uint32_t j = 0; j < CASE_EXPERT * CASE_EXPERT; j++) {
            affinity[j] = (uint16_t)case_below(&random, 65536);
        }
        for (uint32_t j = 0; j < c.edit.n_rows * c.edit.n_used; j++) {
            if (case_below(&random, 3) == 0) {
                c.experts[j] = case_below(&random, 2) == 0 ? NONE : c.edit.n_expert + j;
            }
        }
        moe_draft_routing routing = {
            .fill = (moe_draft_fill)(i % 4), .affinity = affinity, .random = &random};
        moe_draft_route(&routing, &c.edit);
        for (uint32_t j = 0; j < c.edit.n_rows * c.edit.n_used; j++) {
            assert_true(c.experts[j] >= c.edit.n_expert || c.resident[c.experts[j]]);
        }
    }
}

static void test_hottest(void **state)
{
    (void)state;
    const float score[6] = {2.0f, 7.0f, 2.0f, 9.0f, 7.0f, 0.0f};
    const uint32_t order[6] = {3, 1, 4, 0, 2, 5};
    uint32_t experts[7];
    for (uint32_t n = 0; n <= 7; n++) {
        experts[n < 7 ? n : 6] = 77;
        uint32_t got = moe_draft_hottest(score, 6, n, experts);
        assert_int_equal(got, n < 6 ? n : 6);
        assert_memory_equal(experts, order, got * sizeof *order);
        assert_true(n >= 7 || experts[n] == 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_unused_by_hand),
        cmocka_unit_test(test_bias_only_chooses),
        cmocka_unit_test(test_random_cases),
        cmocka_unit_test(test_random_fill_is_uniform),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_hottest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
