/* SPDX-License-Identifier: MIT */
#include "cache/lower_tier.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

int moe_lower_tier_create(moe_lower_tier *tier, const moe_expert_cache_options *options,
                          moe_expert_cache *above, moe_tier_use use, moe_error *err)
{
    const size_t n_keys = (size_t)options->n_layer * options->n_expert;
    *tier = (moe_lower_tier){.above = above, .use = use, .n_expert = options->n_expert};
    MOE_TRY(moe_expert_cache_create(&tier->cache, options, err));
    tier->saved = moe_calloc(n_keys, sizeof *tier->saved);
    tier->pinned = moe_calloc(n_keys, sizeof *tier->pinned);
    if (tier->saved == NULL || tier->pinned == NULL ||
        (use == MOE_TIERS_ENGINE && !moe_expert_cache_stack(tier->cache, above))) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the simulation");
    }
    return MOE_OK;
}

void moe_lower_tier_destroy(moe_lower_tier *tier)
{
    moe_expert_cache_destroy(&tier->cache);
    free(tier->saved);
    free(tier->pinned);
}

static void pin(moe_lower_tier *tier, uint32_t key)
{
    moe_expert_cache_pin(tier->cache, key);
    tier->pinned[tier->n_pinned++] = key;
}

/* Puts an expert that the device has lost into a host slot, if one can be had. In the engine the
 * host's policy has seen the expert's uses that missed the device. With exclusive tiers it has not,
 * so the arrival counts as a use. */
static bool save(moe_lower_tier *tier, uint32_t key, const moe_policy_access *access)
{
    const moe_policy_access seen = {.pass = access->pass,
                                    .layer = key / tier->n_expert,
                                    .n_rows = tier->use == MOE_TIERS_EXCLUSIVE};
    uint32_t evicted;
    if (moe_expert_cache_prefetch(tier->cache, key, &seen, &evicted) == MOE_SLOT_NONE) {
        return false;
    }
    tier->saved[key] = true;
    tier->n_saved++;
    if (tier->use == MOE_TIERS_ENGINE) {
        tier->n_saving++;
        pin(tier, key);
    }
    return true;
}

/* An inclusive host has lost this expert, so the device loses it, unless its wave uses it. */
static void lose_above(moe_lower_tier *tier, uint32_t key)
{
    if (key != MOE_KEY_NONE && tier->use == MOE_TIERS_INCLUSIVE &&
        !moe_expert_cache_is_pinned(tier->above, key)) {
        moe_expert_cache_drop(tier->above, key);
    }
}

static bool access_host(moe_lower_tier *tier, uint32_t key, const moe_policy_access *access,
                        bool prefetch, bool *in_memory)
{
    uint32_t evicted = MOE_KEY_NONE;
    uint32_t slot = moe_expert_cache_find(tier->cache, key);
    *in_memory = slot != MOE_SLOT_NONE;
    if (!prefetch) {
        slot = moe_expert_cache_access(tier->cache, key, access, in_memory, &evicted);
    } else if (!*in_memory) {
        slot = moe_expert_cache_prefetch(tier->cache, key, access, &evicted);
    }
    if (slot == MOE_SLOT_NONE) {
        return false;
    }
    lose_above(tier, evicted);
    pin(tier, key);
    return true;
}

static void count(moe_lower_tier *tier, uint32_t key, bool prefetch, bool in_memory)
{
    tier->saved[key] = tier->saved[key] && in_memory;
    if (!prefetch) {
        tier->hits += in_memory;
        tier->misses += !in_memory;
        tier->hits_saved += tier->saved[key];
        tier->saves.n_recent_hits += tier->saved[key];
    }
}

static void bring_exclusive(moe_lower_tier *tier, uint32_t key, uint32_t evicted,
                            const moe_policy_access *access, bool prefetch, bool *in_memory)
{
    *in_memory = moe_expert_cache_find(tier->cache, key) != MOE_SLOT_NONE;
    count(tier, key, prefetch, *in_memory);
    moe_expert_cache_drop(tier->cache, key);
    if (evicted != MOE_KEY_NONE) {
        (void)save(tier, evicted, access);
    }
}

/* As save_evicted() in offload/expert_store_slots.c. */
static void save_if_it_pays(moe_lower_tier *tier, uint32_t evicted, const moe_policy_access *access,
                            bool in_memory)
{
    const uint32_t most = moe_expert_cache_n_slots(tier->cache) / MOE_SAVING_DIVISOR;
    if (evicted == MOE_KEY_NONE || moe_expert_cache_find(tier->above, evicted) != MOE_SLOT_NONE ||
        tier->n_saving >= most || (in_memory && !moe_tier_saves_pay(&tier->saves))) {
        return;
    }
    if (save(tier, evicted, access)) {
        moe_tier_saves_note(&tier->saves);
    }
}

bool moe_lower_tier_bring(moe_lower_tier *tier, uint32_t key, uint32_t evicted,
                          const moe_policy_access *access, bool prefetch, bool *in_memory)
{
    if (tier->cache == NULL) {
        *in_memory = false;
        return true;
    }
    if (tier->use == MOE_TIERS_EXCLUSIVE) {
        bring_exclusive(tier, key, evicted, access, prefetch, in_memory);
        return true;
    }
    if (!access_host(tier, key, access, prefetch, in_memory)) {
        return false;
    }
    count(tier, key, prefetch, *in_memory);
    if (tier->use == MOE_TIERS_ENGINE) {
        save_if_it_pays(tier, evicted, access, *in_memory);
    }
    return true;
}

void moe_lower_tier_settle(moe_lower_tier *tier)
{
    for (uint32_t i = 0; i < tier->n_pinned; i++) {
        moe_expert_cache_unpin(tier->cache, tier->pinned[i]);
    }
    tier->n_pinned = tier->n_saving = 0;
}
