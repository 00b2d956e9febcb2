/* SPDX-License-Identifier: MIT */
/* For the simulator: expert slots in host memory below a device's slots. Three ways to use them:
 *
 *    engine     the host keeps what it has read, and what leaves the device is saved there while
 *               that pays. Experts that both tiers hold leave the host first
 *    inclusive  the host holds all that the device holds: what leaves the host leaves the device,
 *               too, and nothing is copied back
 *    exclusive  an expert is in one tier. What moves to the device leaves the host, a read from
 *               the disk goes to the device, and all that leaves the device goes to the host
 *
 * The first is what the engine's host tier does (offload/host_tier.h), to the hit. */
#ifndef MOE_CACHE_LOWER_TIER_H
#define MOE_CACHE_LOWER_TIER_H

#include <moe/trace.h>

#include "cache/expert_cache.h"
#include "cache/tier_saves.h"

typedef struct moe_lower_tier {
    moe_expert_cache *cache; /* NULL (all is zero): there is no such tier, and nothing is in it */
    moe_expert_cache *above;
    moe_tier_use use;
    uint32_t n_expert;
    bool *saved;      /* [n_keys] the expert came from the device */
    uint32_t *pinned; /* keys that a move or a save uses until the wave ends */
    uint32_t n_pinned;
    uint32_t n_saving; /* of these, saves */
    moe_tier_saves saves;
    uint64_t hits, misses, hits_saved; /* of demand */
    uint64_t n_saved;                  /* experts copied back from the device */
} moe_lower_tier;

/* options: of the host's slots, which are one size class. Takes over nothing of them. */
int moe_lower_tier_create(moe_lower_tier *tier, const moe_expert_cache_options *options,
                          moe_expert_cache *above, moe_tier_use use, moe_error *err);
void moe_lower_tier_destroy(moe_lower_tier *tier);

/* The device has given the key a slot, and evicted another one for it (or MOE_KEY_NONE).
 * *in_memory: the key's bytes are in host memory. False: all of the host's slots are in use, so
 * that the caller has to end what is under way, and to ask again. */
bool moe_lower_tier_bring(moe_lower_tier *tier, uint32_t key, uint32_t evicted,
                          const moe_policy_access *access, bool prefetch, bool *in_memory);
/* All moves have ended. */
void moe_lower_tier_settle(moe_lower_tier *tier);

#endif
