/* SPDX-License-Identifier: MIT */
#include "runtime/pass/route_edit.h"

#include <math.h>
#include <stddef.h>

/* The value that routers rank by; a NaN comes last. */
static float merit(const moe_route_edit *edit, const float *probs, uint32_t expert)
{
    const float *bias = edit->mixing.selection_bias;
    float value = bias != NULL ? probs[expert] + bias[expert] : probs[expert];
    return isnan(value) ? -INFINITY : value;
}

void moe_route_edit_weigh(const moe_route_edit *edit, uint32_t row)
{
    const float *probs = edit->probs + (size_t)row * edit->n_expert;
    const uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    float *weights = edit->weights + (size_t)row * edit->n_used;
    float sum = 0.0f;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        weights[k] = experts[k] < edit->n_expert ? probs[experts[k]] : 0.0f;
        sum += weights[k];
    }
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (edit->mixing.renormalise) {
            weights[k] /= sum + 1e-20f;
        }
        weights[k] *= edit->mixing.scale;
        if (edit->mixing.expert_scales != NULL && experts[k] < edit->n_expert) {
            weights[k] *= edit->mixing.expert_scales[experts[k]];
        }
    }
}

/* Inserts `expert` into experts[first..at) behind all that are no worse, so of equal experts the
 * earlier one stays in front. Overwrites experts[at]. */
static void insert(const moe_route_edit *edit, const float *probs, uint32_t *experts,
                   uint32_t first, uint32_t at, uint32_t expert)
{
    float m = merit(edit, probs, expert);
    while (at > first && m > merit(edit, probs, experts[at - 1])) {
        experts[at] = experts[at - 1];
        at--;
    }
    experts[at] = expert;
}

/* Keeps the allowed picks and fills the row with the best other allowed experts. Without groups of
 * experts this gives the top-k of the allowed experts; with groups it also respects the groups'
 * choice. */
void moe_route_edit_reselect(const moe_route_edit *edit, uint32_t row, const bool *allowed)
{
    const float *probs = edit->probs + (size_t)row * edit->n_expert;
    uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    uint32_t n_kept = 0;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (experts[k] < edit->n_expert && allowed[experts[k]]) {
            experts[n_kept++] = experts[k];
        }
    }
    uint32_t n = n_kept;
    for (uint32_t e = 0; e < edit->n_expert && n_kept < edit->n_used; e++) {
        bool full = n == edit->n_used;
        if (!allowed[e] ||
            (full && !(merit(edit, probs, e) > merit(edit, probs, experts[n - 1]))) ||
            moe_row_uses(experts, n_kept, e)) {
            continue;
        }
        insert(edit, probs, experts, n_kept, full ? n - 1 : n, e);
        n += !full;
    }
    for (uint32_t i = n_kept; i < n; i++) {
        insert(edit, probs, experts, 0, i, experts[i]);
    }
    while (n < edit->n_used) {
        experts[n++] = MOE_EXPERT_NONE;
    }
    moe_route_edit_weigh(edit, row);
}
