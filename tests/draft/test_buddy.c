/* SPDX-License-Identifier: MIT */
/* Buddies: lists and gates by hand, substitution against a naive reading of the algorithm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "runtime/lossy/buddy.h"
#include "tests/draft/route_case.h"

/* M + 1 of expert 0 is 4, 4, 2 of 10; of expert 3 all are equal. */
static void test_lists_by_hand(void **state)
{
    (void)state;
    const float m[16] = {99, 3, 3, 1, 3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, NAN};
    moe_buddy_list list;
    const float alphas[4] = {0.3f, 0.4f, 0.7f, 1.0f};
    const uint32_t counts[4] = {1, 1, 2, 3};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(moe_buddy_list_build(&list, m, 4, alphas[i], 9, 1.0f, NULL), MOE_OK);
        assert_true(list.max == 3 && list.count[0] == counts[i]);
        assert_true(list.buddies[0] == 1 && fabsf(list.q[0] - 0.4f) < 1e-6f);
        assert_true(list.count[0] < 3 || (list.buddies[1] == 2 && list.buddies[2] == 3));
        moe_buddy_list_free(&list);
    }
    assert_int_equal(moe_buddy_list_build(&list, m, 4, 1.0f, 2, 0.0f, NULL), MOE_OK);
    assert_true(list.count[0] == 2 && list.count[3] == 2 && list.buddies[3 * 2] == 0);
    assert_true(fabsf(list.q[3 * 2] - 1.0f / 3.0f) < 1e-6f); /* never seen, not smoothed */
    moe_buddy_list_free(&list);
    const float bad[4] = {0, -1, 1, 0};
    assert_int_equal(moe_buddy_list_build(&list, bad, 2, 1, 1, 1, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_buddy_list_build(&list, m, 4, 0, 1, 1, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_buddy_list_build(&list, m, 4, 1, 0, 1, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_buddy_list_build(&list, m, 1, 1, 1, 1, NULL), MOE_ERR_ARGUMENT);
}

static void test_entropy(void **state)
{
    (void)state;
    const float p[4] = {0.2f, 0.2f, 0.1f, 0.5f};
    const uint32_t even[2] = {0, 1};
    const uint32_t odd[2] = {0, 2};
    assert_true(fabsf(moe_routing_entropy(p, even, 2, 1.0f) - 1.0f) < 1e-6f);
    assert_true(fabsf(moe_routing_entropy(p, odd, 2, 1.0f) - 0.9182958f) < 1e-6f);
    assert_true(moe_routing_entropy(p, odd, 1, 1.0f) == 0.0f); /* a lone pick: no doubt */
    assert_true(fabsf(moe_routing_entropy(p, odd, 2, 0.5f) - 0.7219281f) < 1e-6f); /* 4 : 1 */
}

static bool naive_gate(const moe_buddy_options *o, const float *p, const uint32_t *row, uint32_t k,
                       uint32_t n)
{
    double sum = 0.0;
    double best[2] = {0.0, 0.0};
    for (uint32_t i = 0; i < (k == 1 ? n : k); i++) {
        double x = p[k == 1 ? i : row[i]];
        sum += x;
        best[1] = x > best[0] ? best[0] : x > best[1] ? x : best[1];
        best[0] = x > best[0] ? x : best[0];
    }
    return (k > 1 && o->tae_threshold >= 0.0f &&
            moe_routing_entropy(p, row, k, 1.0f) <= o->tae_threshold) ||
           (best[0] - best[1]) / (k == 1 ? 1.0 : sum) >= o->margin_threshold;
}

static void naive_row(const moe_buddy_list *list, const moe_buddy_options *o, route_case *c,
                      uint32_t r, moe_buddy_stats *stats)
{
    uint32_t k = c->edit.n_used;
    uint32_t *row = c->experts + (size_t)r * k;
    uint32_t left = o->max_replaced;
    for (uint32_t i = 0; i < k && left > 0; i++) {
        uint32_t wanted = row[i];
        for (uint32_t j = 0; !c->resident[wanted] && row[i] == wanted && j < list->count[wanted] &&
                             (o->search == 0 || j < o->search);
             j++) {
            uint32_t buddy = list->buddies[(size_t)wanted * list->max + j];
            row[i] = c->resident[buddy] && !case_has(row, k, buddy) ? buddy : wanted;
        }
        if (row[i] != wanted) {
            left--;
        } else if (!c->resident[wanted]) {
            stats->n_unserved++;
            if (o->drop_unserved) {
                stats->n_dropped++;
                row[i] = MOE_EXPERT_NONE;
                c->weights[r * k + i] = 0.0f;
            }
        }
    }
    stats->n_replaced += o->max_replaced - left;
    if (left < o->max_replaced && o->weight == MOE_BUDDY_OWN) {
        case_weigh(&c->edit, r, row, c->weights + (size_t)r * k);
    }
}

static void naive(const moe_buddy_list *list, const moe_buddy_options *o, route_case *c,
                  moe_buddy_stats *stats)
{
    uint32_t k = c->edit.n_used;
    double asked = 0.0;
    double away = 0.0;
    stats->n_requested = c->edit.n_rows * k;
    for (uint32_t e = 0; e < c->edit.n_expert; e++) {
        asked += case_has(c->experts, c->edit.n_rows * k, e);
        away += case_has(c->experts, c->edit.n_rows * k, e) && !c->resident[e];
    }
    for (uint32_t i = 0; i < c->edit.n_rows * k; i++) {
        stats->n_missing += !c->resident[c->experts[i]];
    }
    if (stats->n_missing == 0 || o->max_replaced == 0) {
        return;
    }
    if (o->residency_threshold < 1.0f && away >= o->residency_threshold * asked) {
        stats->n_bypassed++;
        return;
    }
    for (uint32_t r = 0; r < c->edit.n_rows; r++) {
        uint32_t *row = c->experts + (size_t)r * k;
        bool missing = false;
        for (uint32_t i = 0; i < k; i++) {
            missing |= !c->resident[row[i]];
        }
        if (missing &&
            naive_gate(o, c->probs + (size_t)r * c->edit.n_expert, row, k, c->edit.n_expert)) {
            stats->n_gated++;
        } else if (missing) {
            naive_row(list, o, c, r, stats);
        }
    }
}

static void check_case(moe_random *random)
{
    route_case before, got, want;
    case_random(&before, random);
    case_copy(&got, &before);
    case_copy(&want, &before);
    float m[CASE_EXPERT * CASE_EXPERT];
    for (uint32_t i = 0; i < CASE_EXPERT * CASE_EXPERT; i++) {
        m[i] = (float)case_below(random, 5);
    }
    moe_buddy_list list;
    assert_int_equal(moe_buddy_list_build(&list, m, before.edit.n_expert, 0.75f,
                                          1 + case_below(random, 12), 1.0f, NULL),
                     MOE_OK);
    moe_buddy_options o;
    moe_buddy_options_init(&o);
    o.max_replaced = case_below(random, 4);
    o.search = case_below(random, 4);
    o.weight = (moe_buddy_weight)case_below(random, 2);
    o.drop_unserved = case_below(random, 2) == 0;
    o.tae_threshold = case_below(random, 2) == 0 ? 0.93f : -1.0f;
    o.margin_threshold = case_below(random, 2) == 0 ? 0.171f : 2.0f;
    o.residency_threshold = case_below(random, 2) == 0 ? 0.5f : 1.0f;
    moe_buddy_stats a = {0};
    moe_buddy_stats b = {0};
    moe_buddy_apply(&list, &o, &got.edit, &a);
    naive(&list, &o, &want, &b);
    assert_true(case_equal(&got, &want) && case_is_distinct(&got));
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(o.max_replaced > 0 || case_equal(&got, &before));
    /* The baseline: resident, distinct, at most rho; a list is not needed. */
    case_copy(&got, &before);
    o.random = true;
    o.random_source = random;
    moe_buddy_apply(NULL, &o, &got.edit, &a);
    assert_true(case_is_distinct(&got));
    for (uint32_t i = 0; i < got.edit.n_rows * got.edit.n_used; i++) {
        uint32_t e = got.experts[i];
        assert_true(e == before.experts[i] || e == MOE_EXPERT_NONE || got.resident[e]);
        got.experts[i] = i % 3 == 0 ? MOE_EXPERT_NONE : i % 3 == 1 ? 1000 : e;
    }
    o.random = false;
    moe_buddy_apply(&list, &o, &got.edit, &a); /* dropped ranks and ids past the end */
    moe_buddy_list_free(&list);
}

static void test_random_cases(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 41);
    for (uint32_t i = 0; i < 8000; i++) {
        check_case(&random);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_by_hand),
        cmocka_unit_test(test_entropy),
        cmocka_unit_test(test_random_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
