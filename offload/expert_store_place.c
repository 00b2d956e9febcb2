/* SPDX-License-Identifier: MIT */
/* Experts that a device reads in place: over its link, from host memory, in a pass that it carries
 * out alone. No host slot changes while such a pass runs, because this thread requests all moves
 * and waits for the pass.
 *
 * Reading in place takes as many bytes over the link as a move. If the store has offered slots
 * (expert_store_keep.c), the pass keeps the experts that it reads; otherwise it leaves no copy of
 * them on the device. The store then moves experts that are soon read again, during the following
 * passes, as long as this adds little to the link's bytes. It counts readings and measures no time,
 * so that runs are repeatable. */
#include <stdlib.h>
#include <string.h>

#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* An expert is moved when it was read in place twice within this many passes. */
#define PROMOTED_WITHIN 32u
/* For this many experts that are read in place, at most one is moved, because a move takes as many
 * bytes over the link as a reading. */
#define READS_A_MOVE 4u
/* Kernels read words of up to this many bytes. In a host slot a part is aligned as in its file,
 * perhaps only to 8 bytes; in a device slot it begins on a cache line of its own. */
#define READ_ALIGNMENT 16u

enum { READABLE = 1, NOT_READABLE = 2 };

int moe_store_init_place(moe_expert_store *store, moe_error *err)
{
    if (store->host == NULL) {
        return MOE_OK;
    }
    size_t n_keys = (size_t)store->options.map->n_layer * store->options.map->n_expert;
    store->place_pass = moe_calloc(n_keys, sizeof *store->place_pass);
    store->promoted = moe_calloc(MOE_MOST_PROMOTED, sizeof *store->promoted);
    store->host_readable =
        moe_calloc(moe_host_tier_arena(store->host)->n_slots, sizeof *store->host_readable);
    if (store->place_pass == NULL || store->promoted == NULL || store->host_readable == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    return MOE_OK;
}

void moe_store_free_place(moe_expert_store *store)
{
    free(store->place_pass);
    free(store->promoted);
    free(store->host_readable);
}

uint64_t moe_expert_store_settle(moe_expert_store *store)
{
    moe_store_settle_ahead(store);
    uint64_t host =
        store->host != NULL ? moe_expert_cache_n_changes(moe_host_tier_cache(store->host)) : 0;
    return moe_expert_store_version(store) + host + store->n_settled;
}

static bool is_aligned(const uint8_t *const *data)
{
    uintptr_t bits = 0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        bits |= (uintptr_t)data[p];
    }
    return bits % READ_ALIGNMENT == 0;
}

const uint8_t *const *moe_store_find_in_host(moe_expert_store *store, uint32_t key)
{
    if (store->host == NULL || !moe_host_tier_has(store->host, key)) {
        return NULL;
    }
    moe_device *device = store->options.device;
    uint32_t slot = moe_expert_cache_find(moe_host_tier_cache(store->host), key);
    uint8_t *readable = &store->host_readable[slot];
    if (*readable == 0) {
        const moe_slot_arena *arena = moe_host_tier_arena(store->host);
        bool is = device->link->reads_host != NULL &&
                  device->link->reads_host(device, moe_slot_arena_buffer(arena, slot, 0),
                                           moe_slot_arena_slot_bytes(arena, slot));
        *readable = is ? READABLE : NOT_READABLE;
    }
    const uint8_t *const *data = moe_host_tier_data(store->host, key);
    return *readable == READABLE && is_aligned(data) ? data : NULL;
}

void moe_store_fill_address(const moe_expert_store *store, uint32_t key, const uint8_t *const *data,
                            bool over_link, moe_expert_address *address)
{
    const moe_tensor_map *map = store->options.map;
    const moe_expert_ref *expert = &map->layers[key / map->n_expert].experts[key % map->n_expert];
    bool no_gate = expert->parts[MOE_EXPERT_GATE].size == 0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        address->parts[p] = data[no_gate && p == MOE_EXPERT_GATE ? MOE_EXPERT_UP : p];
    }
    address->over_link = over_link;
}

void moe_expert_store_reach(moe_expert_store *store, uint32_t layer, bool in_place, uint8_t *reach,
                            moe_expert_address *addresses)
{
    const moe_tensor_map *map = store->options.map;
    memset(reach, MOE_REACH_NONE, map->n_expert);
    memset(addresses, 0, map->n_expert * sizeof *addresses);
    for (uint32_t e = 0; e < map->n_expert; e++) {
        uint32_t key = moe_store_key(store, layer, e);
        const uint8_t *on_device[MOE_EXPERT_PARTS];
        const uint8_t *const *data = NULL;
        uint32_t slot;
        if (moe_store_is_resident(store, key, &slot)) {
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                on_device[p] = moe_mover_data(store->mover, slot, p);
            }
            data = on_device;
            reach[e] = MOE_REACH_DEVICE;
        } else if (in_place && (data = moe_store_find_in_host(store, key)) != NULL) {
            reach[e] = MOE_REACH_HOST;
        }
        if (data != NULL) {
            moe_store_fill_address(store, key, data, reach[e] == MOE_REACH_HOST, &addresses[e]);
        }
        if (reach[e] == MOE_REACH_HOST &&
            moe_expert_cache_find(store->cache, key) != MOE_SLOT_NONE) {
            addresses[e].over_link = MOE_OVER_LINK_COMING;
        }
    }
}

/* Whether to move a key to the device during the following passes. */
static bool is_worth_moving(moe_expert_store *store, uint32_t key, uint64_t pass)
{
    uint64_t last = store->place_pass[key];
    store->place_pass[key] = pass + 1;
    if (store->options.keep_nothing || moe_expert_cache_find(store->cache, key) != MOE_SLOT_NONE) {
        return false;
    }
    if (moe_expert_cache_has_room(store->cache, key)) {
        return true;
    }
    bool again = last > 0 && pass + 1 - last <= PROMOTED_WITHIN;
    if (!again || store->n_unmoved < READS_A_MOVE) {
        return false;
    }
    store->n_unmoved -= READS_A_MOVE;
    return true;
}

/* The offered slot into which a pass has put the expert, or NULL. */
static const moe_slot_offer *find_kept(const moe_played_layer *played, uint32_t expert)
{
    for (uint32_t i = 0; i < played->n_kept; i++) {
        if (played->kept[i].expert == expert) {
            return played->kept[i].offer;
        }
    }
    return NULL;
}

/* Notes that the pass has put the expert at this position of the request into an offered slot. */
static void note_kept(moe_expert_store *store, uint32_t position, const moe_slot_offer *offer)
{
    uint32_t key = store->keys[position];
    MOE_ASSERT(moe_expert_cache_key_of(store->cache, offer->slot) == offer->key);
    MOE_ASSERT(store->slots[offer->slot].holds == 0);
    if (moe_expert_cache_find(store->cache, key) != MOE_SLOT_NONE) {
        /* Since the pass got its addresses, a move of the expert to another slot has begun. The
         * expert gets that slot, and the copy that the pass made is dropped. */
        if (offer->key != MOE_KEY_NONE) {
            moe_store_drop(store, offer->slot);
        }
        store->n_settled++;
        return;
    }
    moe_expert_cache_take(store->cache, offer->slot, key, &store->accesses[position]);
    (void)moe_store_give(store, offer->slot, offer->key);
    moe_store_adopt(store, offer->slot);
    store->n_kept++;
}

void moe_store_note_in_place(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    const moe_played_layer *played = request->played;
    const moe_tensor_map *map = store->options.map;
    for (uint32_t i = 0; i < request->n; i++) {
        uint32_t key = store->keys[i];
        if (played->reach[request->experts[i]] != MOE_REACH_HOST) {
            continue;
        }
        moe_host_tier_hold(store->host, key, &store->accesses[i]);
        moe_host_tier_release(store->host, key);
        store->handled[i] = true;
        store->n_in_place++;
        store->bytes_in_place +=
            moe_expert_ref_bytes(&map->layers[request->layer].experts[request->experts[i]]);
        const moe_slot_offer *offer = find_kept(played, request->experts[i]);
        if (offer != NULL) {
            note_kept(store, i, offer);
            continue;
        }
        if (played->offered) {
            continue;
        }
        store->n_unmoved += store->n_unmoved < READS_A_MOVE * MOE_MOST_PROMOTED;
        if (store->n_promoted < MOE_MOST_PROMOTED && is_worth_moving(store, key, request->pass)) {
            store->promoted[store->n_promoted++] = key;
        }
    }
}

void moe_expert_store_promote(moe_expert_store *store, uint64_t pass)
{
    moe_policy_access access = {.pass = pass};
    MOE_ASSERT(store->n_wave == 0);
    for (uint32_t i = 0; i < store->n_promoted; i++) {
        uint32_t key = store->promoted[i];
        access.layer = key / store->options.map->n_expert;
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE) {
            (void)moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH);
        }
    }
    store->n_promoted = 0;
}

uint64_t moe_expert_store_host_hits(const moe_expert_store *store)
{
    moe_host_tier_stats host = {0};
    if (store->host != NULL) {
        moe_host_tier_get_stats(store->host, &host);
    }
    return host.hits;
}
