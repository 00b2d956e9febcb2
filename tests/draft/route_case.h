/* SPDX-License-Identifier: MIT */
/* Random layers of a pass for the editors of routing, and what the model itself would make of them,
 * written out naively. Probabilities come from few values, so that ties are common. */
#ifndef TESTS_SPECULATE_ROUTE_CASE_H
#define TESTS_SPECULATE_ROUTE_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/random.h"
#include "runtime/pass/route_edit.h"

#define CASE_ROWS   6
#define CASE_EXPERT 24
#define CASE_USED   5

typedef struct route_case {
    uint32_t experts[CASE_ROWS * CASE_USED];
    float weights[CASE_ROWS * CASE_USED];
    float probs[CASE_ROWS * CASE_EXPERT];
    bool resident[CASE_EXPERT];
    float bias[CASE_EXPERT];
    moe_route_edit edit;
} route_case;

static inline uint32_t case_below(moe_random *random, uint32_t limit)
{
    return (uint32_t)(moe_random_next(random) % limit);
}

static inline bool case_has(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] == expert) {
            return true;
        }
    }
    return false;
}

static inline float case_merit(const moe_route_edit *edit, uint32_t row, uint32_t expert)
{
    float p = edit->probs[(size_t)row * edit->n_expert + expert];
    const float *bias = edit->mixing.selection_bias;
    return bias != NULL ? p + bias[expert] : p;
}

/* The top-k of the allowed, one maximum after the other; returns how many there are. */
static inline uint32_t case_top(const moe_route_edit *edit, uint32_t row, const bool *allowed,
                                uint32_t *out)
{
    uint32_t n = 0;
    while (n < edit->n_used) {
        uint32_t best = MOE_EXPERT_NONE;
        for (uint32_t e = 0; e < edit->n_expert; e++) {
            if (allowed[e] && !case_has(out, n, e) &&
                (best == MOE_EXPERT_NONE ||
                 case_merit(edit, row, e) > case_merit(edit, row, best))) {
                best = e;
            }
        }
        if (best == MOE_EXPERT_NONE) {
            break;
        }
        out[n++] = best;
    }
    for (uint32_t k = n; k < edit->n_used; k++) {
        out[k] = MOE_EXPERT_NONE;
    }
    return n;
}

static inline void case_weigh(const moe_route_edit *edit, uint32_t row, const uint32_t *experts,
                              float *weights)
{
    const float *p = edit->probs + (size_t)row * edit->n_expert;
    float sum = 0.0f;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        sum += experts[k] == MOE_EXPERT_NONE ? 0.0f : p[experts[k]];
    }
    float divisor = edit->mixing.renormalise ? sum + 1e-20f : 1.0f;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        weights[k] =
            experts[k] == MOE_EXPERT_NONE ? 0.0f : p[experts[k]] / divisor * edit->mixing.scale;
    }
}

static inline void case_random(route_case *c, moe_random *random)
{
    uint32_t n_expert = 2 + case_below(random, CASE_EXPERT - 1);
    uint32_t most = n_expert < CASE_USED ? n_expert : CASE_USED;
    c->edit =
        (moe_route_edit){.n_rows = 1 + case_below(random, CASE_ROWS),
                         .n_expert = n_expert,
                         .n_used = 1 + case_below(random, most),
                         .experts = c->experts,
                         .weights = c->weights,
                         .probs = c->probs,
                         .resident = c->resident,
                         .mixing = {.renormalise = case_below(random, 2) == 0,
                                    .scale = case_below(random, 2) == 0 ? 1.0f : 2.5f,
                                    .selection_bias = case_below(random, 2) == 0 ? c->bias : NULL}};
    uint32_t values = 3 + case_below(random, 40);
    uint32_t share = case_below(random, 5);
    for (uint32_t e = 0; e < n_expert; e++) {
        c->resident[e] = case_below(random, 4) < share;
        c->bias[e] = 0.125f * (float)case_below(random, 4);
    }
    bool all[CASE_EXPERT];
    memset(all, true, sizeof all);
    for (uint32_t r = 0; r < c->edit.n_rows; r++) {
        float *p = c->probs + (size_t)r * n_expert;
        float sum = 0.0f;
        for (uint32_t e = 0; e < n_expert; e++) {
            p[e] = (float)(1 + case_below(random, values));
            sum += p[e];
        }
        for (uint32_t e = 0; e < n_expert; e++) {
            p[e] /= sum;
        }
        size_t at = (size_t)r * c->edit.n_used;
        (void)case_top(&c->edit, r, all, c->experts + at);
        case_weigh(&c->edit, r, c->experts + at, c->weights + at);
    }
}

/* A copy whose edit points into itself. */
static inline void case_copy(route_case *to, const route_case *from)
{
    *to = *from;
    to->edit.experts = to->experts;
    to->edit.weights = to->weights;
    to->edit.probs = to->probs;
    to->edit.resident = to->resident;
    to->edit.mixing.selection_bias = from->edit.mixing.selection_bias != NULL ? to->bias : NULL;
}

static inline bool case_is_distinct(const route_case *c)
{
    for (uint32_t r = 0; r < c->edit.n_rows; r++) {
        const uint32_t *row = c->experts + (size_t)r * c->edit.n_used;
        for (uint32_t k = 0; k < c->edit.n_used; k++) {
            if (row[k] != MOE_EXPERT_NONE && case_has(row, k, row[k])) {
                return false;
            }
        }
    }
    return true;
}

static inline bool case_equal(const route_case *a, const route_case *b)
{
    size_t n = (size_t)a->edit.n_rows * a->edit.n_used;
    return memcmp(a->experts, b->experts, n * sizeof *a->experts) == 0 &&
           memcmp(a->weights, b->weights, n * sizeof *a->weights) == 0;
}

#endif
