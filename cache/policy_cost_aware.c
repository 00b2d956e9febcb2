/* SPDX-License-Identifier: MIT */
/* Evicts the expert with the smallest product of fading frequency and cost of fetching: the
 * expected cost of a miss (as in GreedyDual). If all costs are equal, only fading frequency counts.
 * O(log n). */
#include <float.h>
#include <math.h>

#include "cache/policies.h"
#include "cache/policy_ranked.h"

static void *cost_aware_create(const moe_policy_config *config)
{
    moe_ranked *ranked = moe_ranked_create(config, -INFINITY);
    for (uint32_t key = 0; ranked != NULL && config->fetch_cost != NULL && key < config->n_keys;
         key++) {
        float cost = config->fetch_cost[key];
        ranked->weight[key] = log2(cost > FLT_MIN ? (double)cost : (double)FLT_MIN);
    }
    return ranked;
}

static void cost_aware_use(void *state, uint32_t key, const moe_policy_access *access)
{
    moe_ranked *ranked = state;
    if (access->n_rows > 0) {
        moe_ranked_add_fading(ranked, key, ranked->weight[key], access->pass);
    }
    moe_ranked_place(ranked, key);
}

const moe_policy moe_policy_cost_aware = {
    .abi = MOE_POLICY_ABI,
    .name = "cost-aware",
    .create = cost_aware_create,
    .destroy = moe_ranked_destroy,
    .hit = cost_aware_use,
    .insert = cost_aware_use,
    .evict = moe_ranked_evict,
    .victim = moe_ranked_victim,
    .end_pass = moe_policy_ignore_pass,
};
