/* SPDX-License-Identifier: MIT */
/* Evicts the expert with the smallest router probability, summed over the rows of a pass and fading
 * over passes. An expert that the router chose with low probability is worth less than one it chose
 * with high probability. O(log n). */
#include <math.h>

#include "cache/policies.h"
#include "cache/policy_ranked.h"

static void *gate_score_create(const moe_policy_config *config)
{
    return moe_ranked_create(config, -INFINITY);
}

static void gate_score_use(void *state, uint32_t key, const moe_policy_access *access)
{
    moe_ranked *ranked = state;
    if (access->gate > 0) {
        moe_ranked_add_fading(ranked, key, log2((double)access->gate), access->pass);
    }
    moe_ranked_place(ranked, key);
}

const moe_policy moe_policy_gate_score = {
    .abi = MOE_POLICY_ABI,
    .needs = MOE_POLICY_NEEDS_GATES,
    .name = "gate-score",
    .create = gate_score_create,
    .destroy = moe_ranked_destroy,
    .hit = gate_score_use,
    .insert = gate_score_use,
    .evict = moe_ranked_evict,
    .victim = moe_ranked_victim,
    .end_pass = moe_policy_ignore_pass,
};
