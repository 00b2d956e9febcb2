/* SPDX-License-Identifier: MIT */
/* Evicts the least frequently used expert; ties go to the least recently used. Counts the uses of
 * every expert, resident or not: a model has few experts, and a cache much smaller than the working
 * set would otherwise never learn which experts are worth keeping. O(log n). */
#include "cache/policies.h"
#include "cache/policy_ranked.h"

static void *lfu_create(const moe_policy_config *config)
{
    return moe_ranked_create(config, 0.0);
}

static void lfu_use(void *state, uint32_t key, const moe_policy_access *access)
{
    moe_ranked *ranked = state;
    /* A prefetch (no rows) makes an expert recent, but is not a use. */
    ranked->score[key] += access->n_rows > 0;
    moe_ranked_place(ranked, key);
}

const moe_policy moe_policy_lfu = {
    .abi = MOE_POLICY_ABI,
    .name = "lfu",
    .create = lfu_create,
    .destroy = moe_ranked_destroy,
    .hit = lfu_use,
    .insert = lfu_use,
    .evict = moe_ranked_evict,
    .victim = moe_ranked_victim,
    .end_pass = moe_policy_ignore_pass,
};
