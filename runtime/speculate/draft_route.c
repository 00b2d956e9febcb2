/* SPDX-License-Identifier: MIT */
#include "runtime/speculate/draft_route.h"

#include <math.h>
#include <stddef.h>

/* What routers choose by; a NaN comes last. */
static float merit(const moe_route_edit *edit, const float *probs, uint32_t expert)
{
    const float *bias = edit->mixing.selection_bias;
    float value = bias != NULL ? probs[expert] + bias[expert] : probs[expert];
    return isnan(value) ? -INFINITY : value;
}

static bool is_used(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] == expert) {
            return true;
        }
    }
    return false;
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
    }
}

/* Puts expert behind those of experts[first..at) that are no worse, so of equals the one that was
 * there first stays in front. experts[at] is overwritten. */
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

/* Without groups of experts in the router, keeping what is allowed and filling up with the best of
 * the rest is the top-k of the allowed; with groups it also respects what they chose. */
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
            is_used(experts, n_kept, e)) {
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

/* ---- Stand-ins ---- */

static uint32_t nearest(const moe_draft_routing *routing, const moe_route_edit *edit,
                        const uint32_t *used, uint32_t expert)
{
    const uint16_t *order = routing->affinity + (size_t)expert * edit->n_expert;
    for (uint32_t i = 0; i < edit->n_expert; i++) {
        if (order[i] < edit->n_expert && edit->resident[order[i]] &&
            !is_used(used, edit->n_used, order[i])) {
            return order[i];
        }
    }
    return MOE_EXPERT_NONE;
}

static uint32_t any_resident(const moe_draft_routing *routing, const moe_route_edit *edit,
                             const uint32_t *used)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        n += edit->resident[e] && !is_used(used, edit->n_used, e);
    }
    if (n == 0) {
        return MOE_EXPERT_NONE;
    }
    uint32_t left = (uint32_t)(moe_random_next(routing->random) % n);
    uint32_t e = 0;
    for (;; e++) {
        bool free_to_use = edit->resident[e] && !is_used(used, edit->n_used, e);
        if (free_to_use && left-- == 0) {
            return e;
        }
    }
}

/* Resident picks keep their ranks; the others are served in rank order. */
static void stand_in(const moe_draft_routing *routing, const moe_route_edit *edit, uint32_t row)
{
    uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    float *weights = edit->weights + (size_t)row * edit->n_used;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (experts[k] >= edit->n_expert || edit->resident[experts[k]]) {
            continue;
        }
        uint32_t wanted = experts[k];
        experts[k] = routing->fill == MOE_DRAFT_FILL_AFFINITY
                         ? nearest(routing, edit, experts, wanted)
                     : routing->fill == MOE_DRAFT_FILL_RANDOM ? any_resident(routing, edit, experts)
                                                              : MOE_EXPERT_NONE;
        weights[k] = experts[k] == MOE_EXPERT_NONE ? 0.0f : weights[k];
    }
}

void moe_draft_route(const moe_draft_routing *routing, moe_route_edit *edit)
{
    uint32_t n_resident = 0;
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        n_resident += edit->resident[e];
    }
    bool reselect = routing->fill == MOE_DRAFT_FILL_ROUTER ||
                    (routing->fill == MOE_DRAFT_FILL_AFFINITY && routing->affinity == NULL) ||
                    (n_resident <= edit->n_used && routing->fill != MOE_DRAFT_FILL_NONE);
    for (uint32_t r = 0; r < edit->n_rows; r++) {
        const uint32_t *experts = edit->experts + (size_t)r * edit->n_used;
        bool all_resident = true;
        for (uint32_t k = 0; k < edit->n_used; k++) {
            all_resident &= experts[k] >= edit->n_expert || edit->resident[experts[k]];
        }
        if (all_resident) {
            continue;
        }
        if (reselect) {
            moe_route_edit_reselect(edit, r, edit->resident);
        } else {
            stand_in(routing, edit, r);
        }
    }
}

uint32_t moe_draft_hottest(const float *score, uint32_t n_expert, uint32_t n, uint32_t *experts)
{
    uint32_t found = 0;
    for (uint32_t e = 0; e < n_expert && n > 0; e++) {
        if (found == n && !(score[e] > score[experts[n - 1]])) {
            continue;
        }
        uint32_t at = found < n ? found++ : n - 1;
        while (at > 0 && score[e] > score[experts[at - 1]]) {
            experts[at] = experts[at - 1];
            at--;
        }
        experts[at] = e;
    }
    return found;
}
