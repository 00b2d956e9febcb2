/* SPDX-License-Identifier: MIT */
#include "runtime/speculate/expert_budget.h"

#include <string.h>

/* score: [n_expert], what the shortlist is ranked by. */
static void rank(const moe_expert_budget *budget, const moe_route_edit *edit, float *score)
{
    if (budget->ranking == MOE_BUDGET_STATIC) {
        memcpy(score, budget->counts, edit->n_expert * sizeof *score);
        return;
    }
    memset(score, 0, edit->n_expert * sizeof *score);
    for (uint32_t r = 0; r < edit->n_rows; r++) {
        const float *probs = edit->probs + (size_t)r * edit->n_expert;
        for (uint32_t e = 0; e < edit->n_expert; e++) {
            score[e] += probs[e];
        }
    }
}

/* allowed: the B best, ties to the lower id; and the free ones. */
static void shortlist(const moe_expert_budget *budget, const moe_route_edit *edit, float *score,
                      bool *allowed)
{
    memset(allowed, 0, edit->n_expert * sizeof *allowed);
    for (uint32_t i = 0; budget->listed != NULL && i < budget->n_listed; i++) {
        allowed[budget->listed[i]] = true;
    }
    if (budget->listed != NULL) {
        return;
    }
    rank(budget, edit, score);
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        allowed[e] = budget->resident_is_free && edit->resident[e];
    }
    for (uint32_t n = 0; n < budget->n_experts; n++) {
        uint32_t best = MOE_EXPERT_NONE;
        for (uint32_t e = 0; e < edit->n_expert; e++) {
            if (!allowed[e] && (best == MOE_EXPERT_NONE || score[e] > score[best])) {
                best = e;
            }
        }
        if (best == MOE_EXPERT_NONE) {
            return;
        }
        allowed[best] = true;
    }
}

static uint32_t n_distinct(const moe_route_edit *edit, bool *seen)
{
    uint32_t n = 0;
    memset(seen, 0, edit->n_expert * sizeof *seen);
    for (uint32_t i = 0; i < edit->n_rows * edit->n_used; i++) {
        uint32_t e = edit->experts[i];
        if (e != MOE_EXPERT_NONE && !seen[e]) {
            seen[e] = true;
            n++;
        }
    }
    return n;
}

/* Counts of a row before it is edited: returns how many of its picks are off the list. */
static uint32_t look_at(const moe_route_edit *edit, uint32_t row, const bool *allowed,
                        moe_budget_stats *stats)
{
    const float *probs = edit->probs + (size_t)row * edit->n_expert;
    const uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    uint32_t n_off = 0;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (experts[k] == MOE_EXPERT_NONE) {
            continue;
        }
        stats->n_picks++;
        stats->mass_natural += probs[experts[k]];
        stats->mass_kept += allowed[experts[k]] ? probs[experts[k]] : 0.0f;
        n_off += !allowed[experts[k]];
    }
    return n_off;
}

static void truncate_row(const moe_route_edit *edit, uint32_t row, const bool *allowed)
{
    for (uint32_t i = row * edit->n_used; i < (row + 1) * edit->n_used; i++) {
        if (edit->experts[i] != MOE_EXPERT_NONE && !allowed[edit->experts[i]]) {
            edit->experts[i] = MOE_EXPERT_NONE;
            edit->weights[i] = 0.0f;
        }
    }
}

void moe_expert_budget_apply(const moe_expert_budget *budget, moe_route_edit *edit, float *scratch,
                             moe_budget_stats *stats)
{
    float *score = scratch;
    bool *allowed = (bool *)(scratch + edit->n_expert);
    bool *seen = allowed + edit->n_expert;
    stats->n_layers++;
    stats->n_experts_natural += n_distinct(edit, seen);
    shortlist(budget, edit, score, allowed);
    for (uint32_t r = 0; r < edit->n_rows; r++) {
        uint32_t n_off = look_at(edit, r, allowed, stats);
        if (n_off == 0) {
            continue;
        }
        if (budget->coverage == MOE_BUDGET_TRUNCATE) {
            truncate_row(edit, r, allowed);
            stats->n_dropped += n_off;
        } else {
            moe_route_edit_reselect(edit, r, allowed);
            stats->n_replaced += n_off;
        }
    }
    stats->n_experts_used += n_distinct(edit, seen);
}
