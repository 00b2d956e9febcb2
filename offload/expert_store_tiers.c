/* SPDX-License-Identifier: MIT */
/* Reports where each expert is now. It counts no access and tells no policy. */
#include <moe/lab.h>

#include "offload/expert_store_state.h"

uint8_t moe_store_tier_of(const moe_expert_store *store, uint32_t key)
{
    const moe_tensor_map *map = store->options.map;
    uint32_t slot;
    if (map->layers[key / map->n_expert].experts == NULL) {
        return MOE_TIER_NONE;
    }
    if (moe_store_is_resident(store, key, &slot)) {
        return MOE_TIER_DEVICE;
    }
    if (slot != MOE_SLOT_NONE) {
        return MOE_TIER_COMING;
    }
    return store->host != NULL && moe_host_tier_has(store->host, key) ? MOE_TIER_HOST
                                                                      : MOE_TIER_DISK;
}

void moe_expert_store_tiers(const moe_expert_store *store, uint8_t *tiers)
{
    const moe_tensor_map *map = store->options.map;
    for (uint32_t key = 0; key < map->n_layer * map->n_expert; key++) {
        tiers[key] = moe_store_tier_of(store, key);
    }
}

uint32_t moe_expert_store_n_without_slot(const moe_expert_store *store, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        const uint8_t tier = moe_store_tier_of(store, moe_store_key(store, layer, e));
        n += tier == MOE_TIER_HOST || tier == MOE_TIER_DISK;
    }
    return n;
}

void moe_expert_store_hops(const moe_expert_store *store, uint32_t layer, uint8_t *hops)
{
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        uint8_t tier = moe_store_tier_of(store, moe_store_key(store, layer, e));
        hops[e] = tier == MOE_TIER_DEVICE ? 0 : tier == MOE_TIER_HOST ? 1 : 2;
    }
}
