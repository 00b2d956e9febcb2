/* SPDX-License-Identifier: MIT */
/* Experts of a layer that the host computes in its own memory, so that they need not be moved to
 * the device. The store says where a layer's experts are, and holds in the host tier the experts
 * that the request wants computed there. */
#include "offload/expert_store_state.h"

/* The host may hold one in HELD_DIVISOR of a size class's slots at once; moves need the others. */
#define HELD_DIVISOR 2

static uint32_t most_on_host(const moe_expert_store *store, uint32_t layer)
{
    return store->host != NULL ? moe_host_tier_slots_of(store->host, layer) / HELD_DIVISOR : 0;
}

void moe_expert_store_locate(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                             uint32_t n, uint8_t *tiers, moe_expert_sites *sites)
{
    const moe_tensor_map *map = store->options.map;
    moe_mover_stats moves;
    moe_store_stop_warming(store);
    for (uint32_t i = 0; i < n; i++) {
        tiers[i] = moe_store_tier_of(store, moe_store_key(store, layer, experts[i]));
    }
    moe_mover_get_stats(store->mover, &moves);
    *sites =
        (moe_expert_sites){.expert_bytes = moe_expert_ref_bytes(&map->layers[layer].experts[0]),
                           .link_ns_per_byte = moves.link_ns_per_byte,
                           .most_on_host = most_on_host(store, layer)};
}

void moe_store_hold_on_host(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    uint32_t most = most_on_host(store, request->layer);
    store->n_host = 0;
    store->host_is_given = false;
    for (uint32_t i = 0; i < request->n && request->on_host != NULL; i++) {
        uint32_t key = store->keys[i];
        request->on_host[i] = request->on_host[i] && store->n_host < most &&
                              moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
                              moe_host_tier_has(store->host, key);
        if (request->on_host[i]) {
            MOE_ASSERT(!store->handled[i]);
            store->handled[i] = true;
            store->host_positions[store->n_host++] = i;
            moe_host_tier_hold(store->host, key, &store->accesses[i]);
        }
    }
    store->n_host_computed += store->n_host;
}

uint32_t moe_store_give_on_host(moe_expert_store *store, uint32_t *positions,
                                moe_expert_view *views)
{
    for (uint32_t i = 0; i < store->n_host; i++) {
        positions[i] = store->host_positions[i];
        uint32_t key = store->keys[positions[i]];
        moe_store_fill_view(store, key, moe_host_tier_data(store->host, key), &views[i]);
    }
    store->host_is_given = true;
    return store->n_host;
}

void moe_store_release_on_host(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_host; i++) {
        moe_host_tier_release(store->host, store->keys[store->host_positions[i]]);
    }
    for (uint32_t i = 0; i < store->n_host && !store->options.keep_nothing; i++) {
        uint32_t key = store->keys[store->host_positions[i]];
        moe_policy_access access = {.pass = store->request.pass, .layer = store->request.layer};
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            moe_expert_cache_has_room(store->cache, key)) {
            (void)moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH);
        }
    }
    store->n_host = 0;
}
