/* SPDX-License-Identifier: MIT */
/* Device slots that a pass fills by itself. Before the pass the store offers the slots that its
 * policy would free next. While the pass runs, the device copies experts from host memory into
 * these slots, and afterwards reports which. The store then records each of them as if it had moved
 * the expert itself (expert_store_place.c): it evicts the expert that was in the slot and gives the
 * slot to the new one. The evicted expert must also be in host memory, because nothing saves its
 * bytes. */
#include <string.h>

#include "offload/expert_store_state.h"

uint32_t moe_expert_store_domain_of(const moe_expert_store *store, uint32_t layer)
{
    return moe_expert_cache_domain_of(store->cache, layer);
}

uint32_t moe_expert_store_offer(moe_expert_store *store, uint32_t layer, uint32_t n,
                                moe_slot_offer *offers)
{
    uint32_t slots[MOE_MOST_OFFERS];
    uint32_t n_offers = 0;
    if (store->host == NULL || store->options.keep_nothing) {
        return 0;
    }
    n = n < MOE_MOST_OFFERS ? n : MOE_MOST_OFFERS;
    n = moe_expert_cache_nominate(store->cache, layer, n, slots);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *buffers[MOE_EXPERT_PARTS];
        const uint8_t *const *home = NULL;
        moe_slot_offer *offer = &offers[n_offers];
        *offer = (moe_slot_offer){.slot = slots[i],
                                  .key = moe_expert_cache_key_of(store->cache, slots[i])};
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            buffers[p] = moe_slot_arena_buffer(&store->arena, slots[i], p);
        }
        /* Any expert of the layer will do: all experts of the domain have parts of the same size.
         */
        moe_store_fill_address(store, moe_store_key(store, layer, 0),
                               (const uint8_t *const *)buffers, false, &offer->place);
        if (offer->key != MOE_KEY_NONE) {
            home = moe_store_find_in_host(store, offer->key);
            if (home == NULL) {
                continue;
            }
            moe_store_fill_address(store, offer->key, home, true, &offer->home);
        }
        n_offers++;
    }
    return n_offers;
}

bool moe_expert_store_offer_holds(const moe_expert_store *store, const moe_slot_offer *offer)
{
    return moe_expert_cache_key_of(store->cache, offer->slot) == offer->key &&
           store->slots[offer->slot].holds == 0 &&
           moe_store_use(store, offer->slot) ==
               (offer->key == MOE_KEY_NONE ? MOE_USE_EMPTY : MOE_USE_RESIDENT);
}

void moe_expert_store_lose_offer(moe_expert_store *store, const moe_slot_offer *offer)
{
    if (offer->key != MOE_KEY_NONE && moe_expert_store_offer_holds(store, offer)) {
        moe_store_drop(store, offer->slot);
    }
}
