/* SPDX-License-Identifier: MIT */
/* Keeps the experts that a calibration used most, whatever the current text uses: the static lists
 * of several papers, and their `caching` baseline. Ties go to the least recently used. O(log n). */
#include "cache/policies.h"
#include "cache/policy_ranked.h"

static void *hot_global_create(const moe_policy_config *config)
{
    moe_ranked *ranked = moe_ranked_create(config, 0.0);
    for (uint32_t key = 0; ranked != NULL && key < config->n_keys; key++) {
        ranked->score[key] = config->hotness[key];
    }
    return ranked;
}

static void hot_global_use(void *state, uint32_t key, const moe_policy_access *access)
{
    moe_ranked *ranked = state;
    (void)access;
    moe_ranked_place(ranked, key);
}

const moe_policy moe_policy_hot_global = {
    .abi = MOE_POLICY_ABI,
    .needs = MOE_POLICY_NEEDS_HOTNESS,
    .name = "hot-global",
    .create = hot_global_create,
    .destroy = moe_ranked_destroy,
    .hit = hot_global_use,
    .insert = hot_global_use,
    .evict = moe_ranked_evict,
    .victim = moe_ranked_victim,
    .end_pass = moe_policy_ignore_pass,
};
