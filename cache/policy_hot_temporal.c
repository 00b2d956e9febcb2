/* SPDX-License-Identifier: MIT */
/* Keeps the experts that the last pass used most (SpecMoE, section 4: the next draft should run
 * with the experts that a verification has just fetched). Evicts experts of older passes first;
 * within a pass, the experts of the fewest rows. O(log n). */
#include "cache/policies.h"
#include "cache/policy_ranked.h"

static void *hot_temporal_create(const moe_policy_config *config)
{
    return moe_ranked_create(config, 0.0);
}

static void hot_temporal_use(void *state, uint32_t key, const moe_policy_access *access)
{
    moe_ranked *ranked = state;
    if (access->n_rows > 0) {
        ranked->score[key] = (double)access->pass;
    }
    moe_key_heap_set(&ranked->heap, key, ranked->score[key], access->n_rows);
}

const moe_policy moe_policy_hot_temporal = {
    .abi = MOE_POLICY_ABI,
    .name = "hot-temporal",
    .create = hot_temporal_create,
    .destroy = moe_ranked_destroy,
    .hit = hot_temporal_use,
    .insert = hot_temporal_use,
    .evict = moe_ranked_evict,
    .victim = moe_ranked_victim,
    .end_pass = moe_policy_ignore_pass,
};
