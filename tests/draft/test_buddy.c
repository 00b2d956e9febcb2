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

/* Two ranks of a row that has experts 0 and 1; expert 3 is wanted and missing, its buddies are 1 (q
 * = 0.6, in the row), 0 (0.3, in the row) and 2 (0.1, one hop away). */
static void test_score_by_hand(void **state)
{
    (void)state;
    float q[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0.6f, 0.3f, 0.1f};
    uint16_t buddies[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2};
    uint32_t count[4] = {0, 0, 0, 3};
    const moe_buddy_list list = {4, 3, count, buddies, q};
    const float probs[4] = {0.25f, 0.125f, 0.125f, 0.5f};
    const bool resident[4] = {true, true, false, false};
    const uint8_t hops[4] = {0, 0, 1, 2};
    const struct {
        float reuse, kappa;
        uint32_t experts[3];
        float weights[3];
    } rows[] = {
        {0.0f, 1.0f, {3, 0, 1}, {0.5f, 0.25f, 0.125f}},                 /* none is allowed */
        {0.0f, 0.0f, {2, 0, 1}, {0.5f, 0.25f, 0.125f}},                 /* 0.1 */
        {0.5f, 1.0f, {MOE_EXPERT_NONE, 0, 1}, {0.0f, 0.25f, 0.625f}},   /* 0.3, 0.15 */
        {0.25f, 0.0f, {MOE_EXPERT_NONE, 0, 1}, {0.0f, 0.25f, 0.625f}},  /* 0.15, 0.075, 0.1 */
        {0.125f, 0.0f, {2, 0, 1}, {0.5f, 0.25f, 0.125f}},               /* 0.075, 0.0375, 0.1 */
        {0.125f, 0.5f, {MOE_EXPERT_NONE, 0, 1}, {0.0f, 0.25f, 0.625f}}, /* 0.075, 0.0375, 0.05 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t experts[3] = {3, 0, 1};
        float weights[3] = {0.5f, 0.25f, 0.125f};
        moe_route_edit edit = {.n_rows = 1,
                               .n_expert = 4,
                               .n_used = 3,
                               .experts = experts,
                               .weights = weights,
                               .probs = probs,
                               .resident = resident};
        moe_buddy_options o;
        moe_buddy_options_init(&o);
        o.reuse = rows[i].reuse;
        o.hop_penalty = rows[i].kappa;
        o.hops = hops;
        moe_buddy_stats stats = {0};
        moe_buddy_apply(&list, &o, &edit, &stats);
        assert_memory_equal(experts, rows[i].experts, sizeof experts);
        assert_memory_equal(weights, rows[i].weights, sizeof weights);
        assert_int_equal(stats.n_reused, experts[0] == MOE_EXPERT_NONE);
    }
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
            moe_routing_entropy(p, row, k, o->tae_temperature) <= o->tae_threshold) ||
           (best[0] - best[1]) / (k == 1 ? 1.0 : sum) >= o->margin_threshold;
}

static double deviation_of(const float *p, uint32_t n, uint32_t e)
{
    double mean = 0.0;
    double square = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        mean += log((double)p[i] + 1e-30) / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        double d = log((double)p[i] + 1e-30) - mean;
        square += d * d / n;
    }
    return (log((double)p[e] + 1e-30) - mean) / (square > 1e-12 ? sqrt(square) : 1e-6);
}

/* Psi of BuddyMoE's section 3.1 with a factor for reuse; -INFINITY: not allowed. Below 0 (a novelty
 * that outweighs 1) the factors divide. */
static double naive_score(const moe_buddy_list *list, const moe_buddy_options *o,
                          const route_case *c, uint32_t r, uint32_t wanted, uint32_t i)
{
    uint32_t j = list->buddies[(size_t)wanted * list->max + i];
    uint32_t away = o->hops != NULL ? o->hops[j] : c->resident[j] ? 0 : 2;
    uint32_t wanted_away = o->hops != NULL ? o->hops[wanted] : 2;
    double factor = 1.0 - (double)o->hop_penalty * away;
    if (case_has(c->experts + (size_t)r * c->edit.n_used, c->edit.n_used, j)) {
        factor *= o->reuse;
    }
    if (away >= wanted_away || factor <= 0.0) {
        return -INFINITY;
    }
    const float *p = c->probs + (size_t)r * c->edit.n_expert;
    double score = list->q[(size_t)wanted * list->max + i];
    if (o->novelty != 0.0f) {
        score *= 1.0 + (double)o->novelty * deviation_of(p, c->edit.n_expert, j);
    }
    return score < 0.0 ? score / factor : score * factor;
}

/* The rank that has the buddy already also gets the weight of this one, which is dropped. */
static void naive_replace(route_case *c, uint32_t r, uint32_t rank, uint32_t buddy,
                          moe_buddy_stats *stats)
{
    uint32_t *row = c->experts + (size_t)r * c->edit.n_used;
    float *weights = c->weights + (size_t)r * c->edit.n_used;
    bool reused = false;
    for (uint32_t i = 0; i < c->edit.n_used; i++) {
        if (row[i] == buddy) {
            weights[i] += weights[rank];
            reused = true;
        }
    }
    row[rank] = reused ? MOE_EXPERT_NONE : buddy;
    weights[rank] = reused ? 0.0f : weights[rank];
    stats->n_reused += reused;
}

static void naive_row(const moe_buddy_list *list, const moe_buddy_options *o, route_case *c,
                      uint32_t r, moe_buddy_stats *stats)
{
    uint32_t k = c->edit.n_used;
    uint32_t *row = c->experts + (size_t)r * k;
    uint32_t left = o->max_replaced;
    for (uint32_t i = 0; i < k && left > 0; i++) {
        uint32_t wanted = row[i];
        double best = -INFINITY;
        uint32_t buddy = MOE_EXPERT_NONE;
        for (uint32_t j = 0; wanted != MOE_EXPERT_NONE && !c->resident[wanted] &&
                             j < list->count[wanted] && (o->search == 0 || j < o->search);
             j++) {
            double score = naive_score(list, o, c, r, wanted, j);
            if (score > best) {
                best = score;
                buddy = list->buddies[(size_t)wanted * list->max + j];
            }
        }
        if (buddy != MOE_EXPERT_NONE) {
            naive_replace(c, r, i, buddy, stats);
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
    o.tae_temperature = case_below(random, 2) == 0 ? 0.8f : 1.0f;
    o.novelty = case_below(random, 3) == 0 ? 0.7f : 0.0f;
    o.reuse = 0.5f * (float)case_below(random, 3);
    uint8_t hops[CASE_EXPERT];
    for (uint32_t e = 0; e < CASE_EXPERT; e++) {
        hops[e] = got.resident[e] ? 0 : (uint8_t)(1 + case_below(random, 2));
    }
    o.hops = case_below(random, 2) == 0 ? hops : NULL;
    o.hop_penalty = o.hops != NULL ? 0.5f * (float)case_below(random, 3) : 1.0f;
    moe_buddy_stats a = {0};
    moe_buddy_stats b = {0};
    moe_buddy_apply(&list, &o, &got.edit, &a);
    naive(&list, &o, &want, &b);
    assert_true(case_equal(&got, &want) && case_is_distinct(&got));
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(o.max_replaced > 0 || case_equal(&got, &before));
    /* The baseline: resident, distinct, at most rho; a list is not needed. */
    case_copy(&got, &before);
    o.hops = NULL;
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
        cmocka_unit_test(test_score_by_hand),
        cmocka_unit_test(test_random_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
