/* SPDX-License-Identifier: MIT */
/* Filling empty slots while nobody asks for anything: prefetches that no layer waits for. All of
 * them are handed to the mover at once, which works them off in its own time, so no thread is
 * needed. They cost a demand nothing but what is already being read when it comes: they never
 * evict, and the first layer that is asked for takes back what has not begun (a slot that waits for
 * its turn is pinned, so leaving them would take slots from the layer). */
#include "offload/expert_store_internal.h"

uint32_t moe_expert_store_warm(moe_expert_store *store, const uint32_t *keys, uint32_t n)
{
    uint32_t n_asked = 0;
    moe_store_settle_prefetches(store);
    for (uint32_t i = 0; i < n; i++) {
        moe_policy_access access = {.layer = keys[i] / store->options.map->n_expert};
        if (moe_expert_cache_find(store->cache, keys[i]) != MOE_SLOT_NONE ||
            !moe_expert_cache_has_room(store->cache, keys[i])) {
            continue;
        }
        if (!moe_store_prefetch_key(store, keys[i], &access, MOE_CAUSE_PREFETCH)) {
            break; /* the host tier's slots are all on their way */
        }
        n_asked++;
    }
    store->warming |= n_asked > 0;
    return n_asked;
}

void moe_store_stop_warming(moe_expert_store *store)
{
    if (store->warming) {
        store->warming = false;
        moe_store_cancel_prefetches(store);
    }
}
