/* SPDX-License-Identifier: MIT */
/* Belady's bound (1966): evicts the expert whose next use comes last. No policy without knowledge
 * of the future can do better when every expert costs the same. All experts of a layer are needed
 * together, so times are counted in layers. Tests compare this policy with exhaustive search: it is
 * optimal for the order in which layers access the cache. O(log n). */
#include "cache/policies.h"
#include "cache/policy_ranked.h"

static void *belady_create(const moe_policy_config *config)
{
    return moe_ranked_create(config, 0.0);
}

static void belady_use(void *state, uint32_t key, const moe_policy_access *access)
{
    moe_ranked *ranked = state;
    ranked->score[key] = -(double)access->next_use;
    moe_ranked_place(ranked, key);
}

const moe_policy moe_policy_belady = {
    .abi = MOE_POLICY_ABI,
    .needs = MOE_POLICY_NEEDS_FUTURE,
    .name = "belady",
    .create = belady_create,
    .destroy = moe_ranked_destroy,
    .hit = belady_use,
    .insert = belady_use,
    .evict = moe_ranked_evict,
    .victim = moe_ranked_victim,
    .end_pass = moe_policy_ignore_pass,
};
