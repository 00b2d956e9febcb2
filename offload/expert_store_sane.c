/* SPDX-License-Identifier: MIT */
/* The state that an expert store must be in between two calls: every pin has an owner, and nothing
 * is under way for a slot that its cache could give away. */
#include "cache/expert_cache_state.h"
#include "offload/expert_store_state.h"

static bool is_under_way(moe_slot_state state)
{
    return state == MOE_SLOT_QUEUED || state == MOE_SLOT_LOADING || state == MOE_SLOT_STAGED ||
           state == MOE_SLOT_COPYING;
}

/* The wave at work: each expert in the slot that the wave says, once. */
static bool wave_is_sane(const moe_expert_store *store)
{
    if (store->n_wave > store->request.n || store->n_delivered > store->n_wave ||
        store->request.n > store->options.map->n_expert) {
        return false;
    }
    uint32_t n_delivered = 0;
    for (uint32_t i = 0; i < store->n_wave; i++) {
        const moe_layer_access *access = &store->wave[i];
        if (access->position >= store->request.n || !store->handled[access->position] ||
            moe_expert_cache_find(store->cache, store->keys[access->position]) != access->slot) {
            return false;
        }
        n_delivered += store->delivered[i];
    }
    return n_delivered == store->n_delivered;
}

static bool protection_is_sane(const moe_expert_store *store)
{
    uint32_t n_marked = 0;
    if (store->n_protected > store->arena.n_slots) {
        return false;
    }
    for (uint32_t key = 0; key < store->cache->n_keys; key++) {
        n_marked += store->is_protected[key];
    }
    for (uint32_t i = 0; i < store->n_protected; i++) {
        if (store->protected_keys[i] >= store->cache->n_keys ||
            !store->is_protected[store->protected_keys[i]]) {
            return false;
        }
    }
    return n_marked == store->n_protected; /* marked as often as listed: none is listed twice */
}

static bool prefetches_are_sane(const moe_expert_store *store)
{
    if (store->n_prefetching > store->arena.n_slots) {
        return false;
    }
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        uint32_t slot = store->prefetching[i];
        if (slot >= store->arena.n_slots ||
            moe_expert_cache_key_of(store->cache, slot) == MOE_KEY_NONE) {
            return false;
        }
        for (uint32_t k = 0; k < i; k++) {
            if (store->prefetching[k] == slot) {
                return false;
            }
        }
    }
    return true;
}

/* A key's pins are those of its owners: what a draft or the caller keeps, foresight, a prefetch,
 * the wave. */
static bool pins_are_sane(const moe_expert_store *store, uint32_t key)
{
    uint32_t slot = moe_expert_cache_find(store->cache, key);
    uint32_t n = (uint32_t)store->is_kept[key] + store->is_protected[key];
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        n += store->prefetching[i] == slot;
    }
    for (uint32_t i = 0; i < store->n_wave; i++) {
        n += store->wave[i].slot == slot;
    }
    return slot == MOE_SLOT_NONE ? !store->is_kept[key] && !store->is_protected[key]
                                 : store->cache->pins[key] == n;
}

/* An expert that is being saved has a pinned host slot. */
static bool saved_key_is_sane(const moe_expert_store *store, uint32_t slot)
{
    return store->in_flight[slot] && store->saved_key[slot] < store->cache->n_keys &&
           moe_expert_cache_find(moe_host_tier_cache(store->host), store->saved_key[slot]) !=
               MOE_SLOT_NONE &&
           moe_host_tier_cache(store->host)->pins[store->saved_key[slot]] > 0;
}

static bool slots_are_sane(const moe_expert_store *store)
{
    uint32_t n_saving = 0;
    for (uint32_t slot = 0; slot < store->arena.n_slots; slot++) {
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        moe_slot_state state = moe_mover_state(store->mover, slot);
        if (key == MOE_KEY_NONE ? state != MOE_SLOT_ABSENT
                                : is_under_way(state) && store->cache->pins[key] == 0) {
            return false;
        }
        n_saving += store->saved_key[slot] != MOE_KEY_NONE;
        if (store->saved_key[slot] != MOE_KEY_NONE && !saved_key_is_sane(store, slot)) {
            return false;
        }
        if (store->in_flight[slot] && (store->host == NULL || key == MOE_KEY_NONE)) {
            return false;
        }
        if (key != MOE_KEY_NONE && !pins_are_sane(store, key)) {
            return false;
        }
    }
    return n_saving == store->n_saving;
}

/* Runs of closed slots in the arena, cut into parts of which at least one is used. */
static bool loans_are_sane(const moe_expert_store *store)
{
    uint32_t n_lent = 0;
    if (store->n_loans > store->loan_capacity) {
        return false;
    }
    for (uint32_t i = 0; i < store->n_loans; i++) {
        const moe_slot_loan *loan = &store->loans[i];
        if (loan->n_run == 0 || loan->first >= store->arena.n_slots ||
            loan->n_run > store->arena.n_slots - loan->first || loan->n_parts == 0 ||
            loan->n_parts > MOE_MOST_LOAN_PARTS || loan->used == 0 ||
            (loan->n_parts < 64 && loan->used >> loan->n_parts != 0) ||
            loan->memory != moe_slot_arena_buffer(&store->arena, loan->first, 0) ||
            loan->n_parts * loan->part_bytes >
                loan->n_run * moe_slot_arena_slot_bytes(&store->arena, loan->first)) {
            return false;
        }
        for (uint32_t slot = loan->first; slot < loan->first + loan->n_run; slot++) {
            if (!moe_expert_cache_is_closed(store->cache, slot)) {
                return false;
            }
        }
        n_lent += loan->n_run;
    }
    return store->host == NULL ? n_lent == 0 : n_lent == moe_expert_cache_n_closed(store->cache);
}

bool moe_expert_store_is_sane(const moe_expert_store *store)
{
    uint32_t n_keys = store->options.map->n_layer * store->options.map->n_expert;
    if (store->cache->n_keys != n_keys || store->cache->n_slots != store->arena.n_slots ||
        !moe_slot_arena_is_sane(&store->arena) || !moe_expert_cache_is_sane(store->cache)) {
        return false;
    }
    if (store->host != NULL && !moe_host_tier_is_sane(store->host)) {
        return false;
    }
    if (!wave_is_sane(store) || !protection_is_sane(store) || !prefetches_are_sane(store)) {
        return false;
    }
    for (uint32_t key = 0; key < n_keys; key++) {
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            !pins_are_sane(store, key)) {
            return false;
        }
    }
    return slots_are_sane(store) && loans_are_sane(store) &&
           (store->host != NULL || store->n_host == 0) &&
           store->n_host <= store->options.map->n_expert;
}
