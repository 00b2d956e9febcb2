/* SPDX-License-Identifier: MIT */
/* The order in which a pass touches the cache, in one place for the engine and the simulator.
 *
 * A layer's distinct experts, ascending, are handled in waves. A wave first takes and pins those
 * that are resident, so that no miss of the same wave evicts one, then gives slots to the missing
 * ones in order until every slot of their domain is pinned. Whoever uses the wave unpins it before
 * the next. A wave always takes at least one expert: a domain has at least one slot, and between
 * waves nothing of it is pinned but prefetches under way (which the engine cancels or awaits
 * first). */
#ifndef MOE_CACHE_LAYER_ACCESS_H
#define MOE_CACHE_LAYER_ACCESS_H

#include "cache/expert_cache.h"

typedef struct moe_layer_access {
    uint32_t position; /* in the list of experts */
    uint32_t slot;
    bool hit;
    uint32_t evicted; /* the key that lost the slot, or MOE_KEY_NONE */
} moe_layer_access;

/* One wave. keys: [n] ascending, of one layer; accesses: [n], what the policy is told of each.
 * handled: [n], set for those of earlier waves, and by this one for those it takes. Writes the wave
 * (hits first, each group ascending) to out and returns its size; 0 when every slot is pinned. */
uint32_t moe_layer_access_wave(moe_expert_cache *cache, const uint32_t *keys,
                               const moe_policy_access *accesses, uint32_t n, bool *handled,
                               moe_layer_access *out);

#endif
