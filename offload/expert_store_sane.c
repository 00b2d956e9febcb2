/* SPDX-License-Identifier: MIT */
/* Checks the state of an expert store between two calls: every pin has an owner, and no move is
 * under way for a slot that its cache could give to another expert. */
#include "cache/expert_cache_state.h"
#include "offload/expert_store_state.h"

/* Each expert of the current wave is in the slot that the wave names, and occurs once in the
 * wave. */
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
            (moe_store_use(store, access->slot) != MOE_USE_RETIRED &&
             (moe_expert_cache_find(store->cache, store->keys[access->position]) != access->slot ||
              !moe_store_is_held(store, access->slot, MOE_HOLD_WAVE)))) {
            return false;
        }
        n_delivered += store->delivered[i];
    }
    return n_delivered == store->n_delivered;
}

/* A list has exactly the slots with its hold, and its count is right. */
static bool list_is_sane(const moe_expert_store *store, const moe_key_list *list,
                         moe_slot_hold hold, uint32_t n)
{
    uint32_t n_held = 0;
    for (uint32_t slot = 0; slot < store->arena.n_slots; slot++) {
        if (moe_store_is_held(store, slot, hold) != moe_key_list_contains(list, slot)) {
            return false;
        }
        n_held += moe_store_is_held(store, slot, hold);
    }
    return n_held == n;
}

static uint32_t n_holds(const moe_slot_record *record)
{
    return (uint32_t)__builtin_popcount(record->holds);
}

/* The expert that a request saves has a pinned slot in the host tier. */
static bool saved_key_is_sane(const moe_expert_store *store, const moe_slot_record *record)
{
    if (record->saved_key == MOE_KEY_NONE) {
        return true;
    }
    return store->host != NULL && record->use == MOE_USE_MOVING &&
           record->saved_key < store->cache->n_keys &&
           moe_expert_cache_find(moe_host_tier_cache(store->host), record->saved_key) !=
               MOE_SLOT_NONE &&
           moe_expert_cache_is_pinned(moe_host_tier_cache(store->host), record->saved_key);
}

/* Whether a slot's use and holds fit what the cache and the mover know. */
static bool slot_is_sane(const moe_expert_store *store, uint32_t slot)
{
    const moe_slot_record *record = &store->slots[slot];
    uint32_t key = moe_expert_cache_key_of(store->cache, slot);
    moe_slot_state state = moe_mover_state(store->mover, slot);
    bool closed = moe_expert_cache_is_closed(store->cache, slot);
    if (!saved_key_is_sane(store, record) ||
        (key != MOE_KEY_NONE ? store->cache->pins[key] != n_holds(record) : record->holds != 0)) {
        return false;
    }
    switch ((moe_slot_use)record->use) {
    case MOE_USE_EMPTY:
        return key == MOE_KEY_NONE && !closed && state == MOE_SLOT_ABSENT;
    case MOE_USE_GIVEN:
        return key != MOE_KEY_NONE && record->holds != 0 && state == MOE_SLOT_ABSENT;
    case MOE_USE_MOVING:
        return key != MOE_KEY_NONE && record->holds != 0 && state != MOE_SLOT_ABSENT;
    case MOE_USE_RESIDENT:
        return key != MOE_KEY_NONE && (record->holds & MOE_HOLD_AHEAD) == 0 &&
               state == MOE_SLOT_READY;
    case MOE_USE_CLOSED:
        return key == MOE_KEY_NONE && closed && store->host == NULL && state == MOE_SLOT_ABSENT;
    case MOE_USE_LENT:
        return key == MOE_KEY_NONE && closed && store->host != NULL && state == MOE_SLOT_ABSENT;
    case MOE_USE_RETIRED:
        return key == MOE_KEY_NONE && closed && record->holds == 0;
    case MOE_USE_COUNT:
        break;
    }
    return false;
}

static bool slots_are_sane(const moe_expert_store *store)
{
    uint32_t n_saving = 0;
    uint32_t n_retired = 0;
    uint32_t n_in_wave = 0;
    for (uint32_t slot = 0; slot < store->arena.n_slots; slot++) {
        const moe_slot_record *record = &store->slots[slot];
        if (!slot_is_sane(store, slot)) {
            return false;
        }
        n_saving += record->saved_key != MOE_KEY_NONE;
        n_retired += record->use == MOE_USE_RETIRED;
        n_in_wave += (record->holds & MOE_HOLD_WAVE) != 0;
    }
    return n_saving == store->n_saving && n_retired == store->n_retired &&
           (n_in_wave == store->n_wave || (n_retired > 0 && n_in_wave < store->n_wave)) &&
           list_is_sane(store, &store->ahead, MOE_HOLD_AHEAD, store->n_ahead) &&
           list_is_sane(store, &store->foreseen, MOE_HOLD_FORESEEN, store->n_foreseen);
}

/* Loans are runs of closed slots in the arena, cut into parts of which at least one is used. */
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
            if (moe_store_use(store, slot) != MOE_USE_LENT) {
                return false;
            }
        }
        n_lent += loan->n_run;
    }
    for (uint32_t slot = 0; slot < store->arena.n_slots; slot++) {
        n_lent -= moe_store_use(store, slot) == MOE_USE_LENT;
    }
    return n_lent == 0;
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
    return wave_is_sane(store) && slots_are_sane(store) && loans_are_sane(store) &&
           (store->host != NULL || store->n_host == 0) &&
           store->n_host <= store->options.map->n_expert;
}
