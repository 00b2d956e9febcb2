/* SPDX-License-Identifier: MIT */
#include "runtime/draft/draft_route.h"

#include <stddef.h>

static uint32_t nearest(const moe_draft_routing *routing, const moe_route_edit *edit,
                        const uint32_t *used, uint32_t expert)
{
    const uint16_t *order = routing->affinity + (size_t)expert * edit->n_expert;
    for (uint32_t i = 0; i < edit->n_expert; i++) {
        if (order[i] < edit->n_expert && edit->resident[order[i]] &&
            !moe_row_uses(used, edit->n_used, order[i])) {
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
        n += edit->resident[e] && !moe_row_uses(used, edit->n_used, e);
    }
    if (n == 0) {
        return MOE_EXPERT_NONE;
    }
    uint32_t left = (uint32_t)(moe_random_next(routing->random) % n);
    uint32_t e = 0;
    for (;; e++) {
        bool free_to_use = edit->resident[e] && !moe_row_uses(used, edit->n_used, e);
        if (free_to_use && left-- == 0) {
            return e;
        }
    }
}

/* Replaces the picks of a row that are not resident by stand-ins, in the order of ranks. Resident
 * picks keep their ranks. */
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
