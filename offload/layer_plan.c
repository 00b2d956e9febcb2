/* SPDX-License-Identifier: MIT */
#include "offload/layer_plan.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

int moe_layer_plan_init(moe_layer_plan *plan, uint32_t max_rows, uint32_t n_used,
                        uint32_t n_expert_all, moe_error *err)
{
    *plan = (moe_layer_plan){.max_slots = max_rows * n_used, .n_expert_all = n_expert_all};
    plan->experts = moe_calloc(n_expert_all, sizeof *plan->experts);
    plan->first = moe_calloc((size_t)n_expert_all + 1, sizeof *plan->first);
    plan->rows = moe_calloc(plan->max_slots, sizeof *plan->rows);
    plan->ranked_slots = moe_calloc(plan->max_slots, sizeof *plan->ranked_slots);
    plan->position = moe_calloc(n_expert_all, sizeof *plan->position);
    if (plan->experts == NULL || plan->first == NULL || plan->rows == NULL ||
        plan->ranked_slots == NULL || plan->position == NULL) {
        moe_layer_plan_free(plan);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a layer plan of %u rows", max_rows);
    }
    return MOE_OK;
}

void moe_layer_plan_free(moe_layer_plan *plan)
{
    free(plan->experts);
    free(plan->first);
    free(plan->rows);
    free(plan->ranked_slots);
    free(plan->position);
    *plan = (moe_layer_plan){0};
}

/* Sorts the (row, rank) pairs by expert: a counting sort. */
void moe_layer_plan_build(moe_layer_plan *plan, const uint32_t *chosen, uint32_t n_rows,
                          uint32_t n_used)
{
    uint32_t n_slots = n_rows * n_used;
    MOE_ASSERT(n_slots <= plan->max_slots);
    uint32_t *count = plan->position;
    memset(count, 0, plan->n_expert_all * sizeof *count);
    for (uint32_t s = 0; s < n_slots; s++) {
        if (chosen[s] != MOE_PLAN_NO_EXPERT) {
            MOE_ASSERT(chosen[s] < plan->n_expert_all);
            count[chosen[s]]++;
            MOE_ASSERT(count[chosen[s]] <= n_rows); /* experts are distinct within a row */
        }
    }
    plan->n_experts = 0;
    uint32_t begin = 0;
    for (uint32_t e = 0; e < plan->n_expert_all; e++) {
        if (count[e] == 0) {
            continue;
        }
        plan->experts[plan->n_experts] = e;
        plan->first[plan->n_experts++] = begin;
        begin += count[e];
        plan->position[e] = begin - count[e];
    }
    plan->first[plan->n_experts] = begin;
    for (uint32_t s = 0; s < n_slots; s++) {
        if (chosen[s] == MOE_PLAN_NO_EXPERT) {
            continue;
        }
        uint32_t at = plan->position[chosen[s]]++;
        MOE_ASSERT(at < plan->first[plan->n_experts]);
        plan->rows[at] = s / n_used;
        plan->ranked_slots[at] = s;
    }
}
