/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/expert_budget.h"

#include <string.h>

/* Computes the scores [n_expert] by which the budget chooses experts. */
static void rank(const moe_expert_budget *budget, const moe_route_edit *edit, float *score)
{
    if (budget->ranking == MOE_BUDGET_STATIC && budget->counts != NULL) {
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

/* Sets `allowed` for the B experts with the best scores (of equal scores, the lower id), and for
 * the experts that do not count towards the budget. */
static void shortlist(const moe_expert_budget *budget, const moe_route_edit *edit, float *score,
                      bool *allowed)
{
    memset(allowed, 0, edit->n_expert * sizeof *allowed);
    for (uint32_t i = 0; budget->listed != NULL && i < budget->n_listed; i++) {
        if (budget->listed[i] < edit->n_expert) {
            allowed[budget->listed[i]] = true;
        }
    }
    for (uint32_t e = 0; e < edit->n_expert && budget->resident_is_free; e++) {
        allowed[e] |= edit->resident[e];
    }
    if (budget->listed != NULL) {
        return;
    }
    rank(budget, edit, score);
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
    for (size_t i = 0; i < (size_t)edit->n_rows * edit->n_used; i++) {
        uint32_t e = edit->experts[i];
        if (e < edit->n_expert && !seen[e]) {
            seen[e] = true;
            n++;
        }
    }
    return n;
}

/* Counts a row before it is edited. Returns how many of its picks the budget does not allow. */
static uint32_t look_at(const moe_route_edit *edit, uint32_t row, const bool *allowed,
                        moe_budget_stats *stats)
{
    const float *probs = edit->probs + (size_t)row * edit->n_expert;
    const uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    uint32_t n_off = 0;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (experts[k] >= edit->n_expert) {
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
    uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    float *weights = edit->weights + (size_t)row * edit->n_used;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (experts[k] < edit->n_expert && !allowed[experts[k]]) {
            experts[k] = MOE_EXPERT_NONE;
            weights[k] = 0.0f;
        }
    }
}

static uint32_t n_in_row(const moe_route_edit *edit, uint32_t row)
{
    const uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    uint32_t n = 0;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        n += experts[k] < edit->n_expert;
    }
    return n;
}

/* Replaces the picks that are not allowed. A list from outside may have fewer experts than a row
 * needs; ranks that it cannot fill are dropped. */
static void substitute_row(const moe_route_edit *edit, uint32_t row, uint32_t n_off,
                           const bool *allowed, moe_budget_stats *stats)
{
    uint32_t before = n_in_row(edit, row);
    moe_route_edit_reselect(edit, row, allowed);
    uint32_t after = n_in_row(edit, row);
    uint32_t n_dropped = before > after ? before - after : 0;
    stats->n_dropped += n_dropped;
    stats->n_replaced += n_off - n_dropped;
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
            substitute_row(edit, r, n_off, allowed, stats);
        }
    }
    stats->n_experts_used += n_distinct(edit, seen);
}
