/* SPDX-License-Identifier: MIT */
#include "offload/host_tier.h"

#include <stdlib.h>

#include "cache/tier_saves.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

/* What a slot is used for:
 *
 *    EMPTY, COMPLETE --take(), take_saved()--> FILLING   the expert's bytes are on their way
 *    FILLING --settle()--> COMPLETE or EMPTY             the bytes have come, or not
 *    EMPTY, COMPLETE --note_closed()--> CLOSED --> EMPTY the memory is used for something else
 *
 * While FILLING the expert is pinned, so the slot cannot be given to another one. */
typedef enum host_use { HOST_EMPTY, HOST_FILLING, HOST_COMPLETE, HOST_CLOSED } host_use;

typedef struct host_slot {
    host_use use;
    bool saved;                            /* the bytes came from the device */
    const uint8_t *data[MOE_EXPERT_PARTS]; /* where the parts begin in their buffers */
} host_slot;

struct moe_host_tier {
    moe_slot_arena arena;
    /* A slot has made a change that is not allowed, and this has not been reported yet. */
    bool fault;
    moe_expert_cache *cache;
    host_slot *slots;
    uint64_t hits_saved; /* hits on experts that were saved from the device */
    moe_tier_saves saves;
};

int moe_host_tier_open(moe_host_tier **out, const moe_host_tier_options *o, moe_error *err)
{
    *out = NULL;
    moe_host_tier *tier = moe_calloc(1, sizeof *tier);
    if (tier == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the host tier");
    }
    int status = moe_slot_arena_init(&tier->arena, o->device, o->map, NULL, o->buffer_bytes,
                                     o->context, err);
    if (status == MOE_OK) {
        status = moe_slot_arena_allocate(&tier->arena, true, &o->budget_bytes, err);
    }
    if (status == MOE_OK) {
        moe_expert_cache_options cache = {.n_expert_used = o->n_expert_used,
                                          .policy = o->policy,
                                          .hotness = o->hotness,
                                          .has_gates = true,
                                          .seed = o->seed};
        status = moe_slot_arena_create_cache(&tier->arena, o->map, &cache, &tier->cache, err);
    }
    if (status == MOE_OK) {
        tier->slots = moe_calloc(tier->arena.n_slots, sizeof *tier->slots);
        if (tier->slots == NULL) {
            status = moe_fail(err, MOE_ERR_MEMORY, "no memory for the host tier");
        }
    }
    if (status != MOE_OK) {
        moe_host_tier_close(&tier);
        return status;
    }
    *out = tier;
    return MOE_OK;
}

void moe_host_tier_leave(moe_host_tier *tier)
{
    moe_slot_arena_leave(&tier->arena);
}

void moe_host_tier_close(moe_host_tier **tier_ptr)
{
    moe_host_tier *tier = *tier_ptr;
    if (tier == NULL) {
        return;
    }
    moe_expert_cache_destroy(&tier->cache);
    moe_slot_arena_free(&tier->arena);
    free(tier->slots);
    free(tier);
    *tier_ptr = NULL;
}

/* The only function that writes a slot's use. */
static void set_use(moe_host_tier *tier, uint32_t index, host_use use)
{
    host_slot *slot = &tier->slots[index];
    bool lawful = use == HOST_COMPLETE ? slot->use == HOST_FILLING : slot->use != HOST_FILLING;
    lawful = use == HOST_EMPTY ? slot->use == HOST_FILLING || slot->use == HOST_CLOSED : lawful;
    lawful = lawful && (slot->use != HOST_CLOSED || use == HOST_EMPTY);
    MOE_ASSERT(lawful);
    uint32_t key = moe_expert_cache_key_of(tier->cache, index);
    if (!lawful && key != MOE_KEY_NONE) {
        /* Pinned for good: something may still use the slot's memory. */
        moe_expert_cache_pin(tier->cache, key);
    }
    tier->fault |= !lawful;
    slot->use = use;
}

/* Finds the key's slot, or takes one for it; MOE_SLOT_NONE when all slots are pinned. */
static uint32_t find_slot(moe_host_tier *tier, uint32_t key, const moe_policy_access *access,
                          bool prefetch, bool *present)
{
    uint32_t evicted;
    uint32_t slot = moe_expert_cache_find(tier->cache, key);
    *present = slot != MOE_SLOT_NONE;
    if (!prefetch) {
        return moe_expert_cache_access(tier->cache, key, access, present, &evicted);
    }
    return *present ? slot : moe_expert_cache_prefetch(tier->cache, key, access, &evicted);
}

static void note_hit(moe_host_tier *tier, uint32_t slot)
{
    tier->hits_saved += tier->slots[slot].saved;
    tier->saves.n_recent_hits += tier->slots[slot].saved;
}

bool moe_host_tier_take(moe_host_tier *tier, uint32_t key, const moe_policy_access *access,
                        bool prefetch, moe_move *move)
{
    bool present;
    uint32_t slot = moe_expert_cache_find(tier->cache, key);
    if (slot != MOE_SLOT_NONE && tier->slots[slot].use == HOST_FILLING) {
        return false;
    }
    slot = find_slot(tier, key, access, prefetch, &present);
    if (slot == MOE_SLOT_NONE) {
        return false;
    }
    moe_expert_cache_pin(tier->cache, key);
    if (!present) {
        set_use(tier, slot, HOST_FILLING);
    }
    tier->slots[slot].saved &= present;
    if (!prefetch) {
        note_hit(tier, slot);
    }
    move->in_memory = present;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        MOE_ASSERT(!move->in_memory || tier->slots[slot].data[p] != NULL);
        move->buffers[p] = move->in_memory ? (uint8_t *)tier->slots[slot].data[p]
                                           : moe_slot_arena_buffer(&tier->arena, slot, p);
    }
    return true;
}

void moe_host_tier_settle(moe_host_tier *tier, uint32_t key,
                          const uint8_t *const data[MOE_EXPERT_PARTS])
{
    MOE_ASSERT(moe_expert_cache_find(tier->cache, key) != MOE_SLOT_NONE);
    uint32_t slot = moe_expert_cache_find(tier->cache, key);
    moe_expert_cache_unpin(tier->cache, key);
    if (data[0] == NULL) {
        set_use(tier, slot, HOST_EMPTY);
        moe_expert_cache_drop(tier->cache, key);
        return;
    }
    if (tier->slots[slot].use == HOST_FILLING) {
        set_use(tier, slot, HOST_COMPLETE);
    }
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        tier->slots[slot].data[p] = data[p];
    }
}

bool moe_host_tier_take_saved(moe_host_tier *tier, uint32_t key, const moe_policy_access *access,
                              uint8_t *buffers[MOE_EXPERT_PARTS])
{
    uint32_t evicted;
    uint32_t slot = moe_expert_cache_prefetch(tier->cache, key, access, &evicted);
    if (slot == MOE_SLOT_NONE) {
        return false;
    }
    moe_expert_cache_pin(tier->cache, key);
    set_use(tier, slot, HOST_FILLING);
    tier->slots[slot].saved = true;
    moe_tier_saves_note(&tier->saves);
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        buffers[p] = moe_slot_arena_buffer(&tier->arena, slot, p);
    }
    return true;
}

bool moe_host_tier_save_pays(moe_host_tier *tier)
{
    return moe_tier_saves_pay(&tier->saves);
}

void moe_host_tier_settle_saved(moe_host_tier *tier, uint32_t key, bool complete)
{
    const uint8_t *data[MOE_EXPERT_PARTS] = {NULL};
    uint32_t slot = moe_expert_cache_find(tier->cache, key);
    for (int p = 0; p < MOE_EXPERT_PARTS && complete; p++) {
        data[p] = moe_slot_arena_buffer(&tier->arena, slot, p);
    }
    moe_host_tier_settle(tier, key, data);
}

bool moe_host_tier_has(const moe_host_tier *tier, uint32_t key)
{
    uint32_t slot = moe_expert_cache_find(tier->cache, key);
    return slot != MOE_SLOT_NONE && tier->slots[slot].use == HOST_COMPLETE;
}

void moe_host_tier_hold(moe_host_tier *tier, uint32_t key, const moe_policy_access *access)
{
    MOE_ASSERT(moe_host_tier_has(tier, key));
    bool hit;
    uint32_t evicted;
    uint32_t slot = moe_expert_cache_access(tier->cache, key, access, &hit, &evicted);
    note_hit(tier, slot);
    moe_expert_cache_pin(tier->cache, key);
}

const uint8_t *const *moe_host_tier_data(const moe_host_tier *tier, uint32_t key)
{
    MOE_ASSERT(moe_host_tier_has(tier, key));
    return tier->slots[moe_expert_cache_find(tier->cache, key)].data;
}

void moe_host_tier_release(moe_host_tier *tier, uint32_t key)
{
    moe_expert_cache_unpin(tier->cache, key);
}

const moe_slot_arena *moe_host_tier_arena(const moe_host_tier *tier)
{
    return &tier->arena;
}

moe_expert_cache *moe_host_tier_cache(const moe_host_tier *tier)
{
    return tier->cache;
}

uint32_t moe_host_tier_slots_of(const moe_host_tier *tier, uint32_t layer)
{
    MOE_ASSERT(layer < tier->arena.n_layer);
    moe_cache_domain_size size = {0};
    uint32_t class_id = tier->arena.class_of_layer[layer];
    for (uint32_t d = 0; moe_expert_cache_domain(tier->cache, d, &size); d++) {
        if (size.class_id == class_id) {
            return size.n_open;
        }
    }
    return 0;
}

void moe_host_tier_end_pass(moe_host_tier *tier, uint64_t pass)
{
    moe_expert_cache_end_pass(tier->cache, pass);
}

void moe_host_tier_get_stats(const moe_host_tier *tier, moe_host_tier_stats *stats)
{
    moe_expert_cache_stats cache;
    moe_expert_cache_get_stats(tier->cache, &cache);
    *stats = (moe_host_tier_stats){.hits = cache.hits,
                                   .misses = cache.misses,
                                   .hits_saved = tier->hits_saved,
                                   .policy_faults = cache.policy_faults,
                                   .n_slots = tier->arena.n_slots,
                                   .slot_bytes_total = tier->arena.bytes,
                                   .n_resident = moe_expert_cache_n_resident(tier->cache)};
}

void moe_host_tier_note_closed(moe_host_tier *tier, uint32_t slot, bool closed)
{
    set_use(tier, slot, closed ? HOST_CLOSED : HOST_EMPTY);
}

bool moe_host_tier_is_closed(const moe_host_tier *tier, uint32_t slot)
{
    return tier->slots[slot].use == HOST_CLOSED;
}

bool moe_host_tier_take_fault(moe_host_tier *tier)
{
    bool fault = tier->fault;
    tier->fault = false;
    return fault;
}

/* Whether a slot's use agrees with the cache. A slot may still have the bytes of an evicted expert.
 */
static bool slot_is_sane(const moe_host_tier *tier, uint32_t slot)
{
    uint32_t key = moe_expert_cache_key_of(tier->cache, slot);
    switch (tier->slots[slot].use) {
    case HOST_EMPTY:
        return key == MOE_KEY_NONE;
    case HOST_FILLING:
        return key != MOE_KEY_NONE && moe_expert_cache_is_pinned(tier->cache, key);
    case HOST_COMPLETE:
        return !moe_expert_cache_is_closed(tier->cache, slot);
    case HOST_CLOSED:
        return moe_expert_cache_is_closed(tier->cache, slot);
    }
    return false;
}

bool moe_host_tier_is_sane(const moe_host_tier *tier)
{
    if (!moe_slot_arena_is_sane(&tier->arena) || !moe_expert_cache_is_sane(tier->cache) ||
        moe_expert_cache_n_slots(tier->cache) != tier->arena.n_slots) {
        return false;
    }
    for (uint32_t slot = 0; slot < tier->arena.n_slots; slot++) {
        if (!slot_is_sane(tier, slot)) {
            return false;
        }
        for (int p = 0; p < MOE_EXPERT_PARTS && tier->slots[slot].use == HOST_COMPLETE; p++) {
            const uint8_t *begin = moe_slot_arena_buffer(&tier->arena, slot, 0);
            size_t at = (size_t)(tier->slots[slot].data[p] - begin);
            if (at >= moe_slot_arena_slot_bytes(&tier->arena, slot)) {
                return false;
            }
        }
    }
    return true;
}
