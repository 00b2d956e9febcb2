/* SPDX-License-Identifier: MIT */
/* The order in which a pass accesses the cache. Engine and simulator both use it.
 *
 * A layer's distinct experts, ascending, are handled in waves. A wave first pins the resident
 * experts, so that no miss of the same wave evicts one. It then gives slots to the missing experts
 * in order, until every slot of their domain is pinned. The caller unpins a wave before it asks for
 * the next. A wave always takes at least one expert: a domain has at least one slot, and between
 * waves only prefetches under way are pinned, which the engine first cancels or awaits. */
#ifndef MOE_CACHE_LAYER_ACCESS_H
#define MOE_CACHE_LAYER_ACCESS_H

#include "cache/expert_cache.h"

typedef struct moe_layer_access {
    uint32_t position; /* in the list of experts */
    uint32_t slot;
    bool hit;
    uint32_t evicted; /* the key that lost the slot, or MOE_KEY_NONE */
} moe_layer_access;

/* Takes one wave. keys: [n] of one layer, ascending; accesses: [n] what to tell the policy about
 * each; handled: [n] true for the keys of earlier waves, and set for those of this wave. Writes
 * the wave's keys to `out` (hits first, each group ascending) and returns their number; 0: every
 * slot is pinned. */
uint32_t moe_layer_access_wave(moe_expert_cache *cache, const uint32_t *keys,
                               const moe_policy_access *accesses, uint32_t n, bool *handled,
                               moe_layer_access *out);

#endif
