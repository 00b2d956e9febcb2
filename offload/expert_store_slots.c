/* SPDX-License-Identifier: MIT */
/* What all parts of the store do to slots: bring a key into a slot (on demand or ahead), check what
 * became of it, and release it. */
#include "offload/expert_store_state.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* At most this part of a size class's host slots is being filled from the device at once; reads
 * need the rest. */
#define SAVING_DIVISOR 4

void moe_store_fill_view(const moe_expert_store *store, uint32_t key, const uint8_t *const *data,
                         moe_expert_view *view)
{
    MOE_ASSERT(key < store->options.map->n_layer * store->options.map->n_expert);
    const moe_tensor_map *map = store->options.map;
    const moe_expert_ref *expert = &map->layers[key / map->n_expert].experts[key % map->n_expert];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &expert->parts[p];
        MOE_ASSERT(data[p] != NULL);
        view->parts[p] = (moe_weight){.type = ref->type,
                                      .data = data[p],
                                      .n_in = (uint32_t)ref->n_in,
                                      .n_out = (uint32_t)ref->n_out,
                                      .row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in),
                                      .scale = moe_tensor_scale_of(map, ref)};
    }
    if (expert->parts[MOE_EXPERT_GATE].size == 0) {
        view->parts[MOE_EXPERT_GATE] = view->parts[MOE_EXPERT_UP];
    }
}

uint32_t moe_store_clear_slot(moe_expert_store *store, uint32_t slot, uint32_t evicted)
{
    bool there = moe_mover_state(store->mover, slot) == MOE_SLOT_READY;
    moe_mover_reset(store->mover, slot);
    return there ? evicted : MOE_KEY_NONE;
}

/* Has the move save the expert that the slot holds to host memory, if there is a place for it. The
 * two tiers then hold one copy of each expert: the host's slots go to experts that the device has
 * lost, and first those that it holds as well are given up (moe_expert_cache_stack()). While the
 * request reads from the disk its save costs nothing; if its bytes are there, it waits for a copy
 * over the link, which has to pay. */
static void save_evicted(moe_expert_store *store, uint32_t slot, uint32_t evicted,
                         const moe_policy_access *access, moe_move *move)
{
    const moe_tensor_map *map = store->options.map;
    uint32_t layer = evicted / map->n_expert;
    moe_policy_access saved = {.pass = access->pass, .layer = layer};
    store->saved_key[slot] = MOE_KEY_NONE;
    if (evicted == MOE_KEY_NONE || store->options.keep_nothing ||
        moe_expert_cache_find(store->cache, evicted) != MOE_SLOT_NONE ||
        store->n_saving >= moe_host_tier_slots_of(store->host, layer) / SAVING_DIVISOR ||
        (move->in_memory && !moe_host_tier_save_pays(store->host)) ||
        !moe_host_tier_take_saved(store->host, evicted, &saved, move->save.buffers)) {
        return;
    }
    move->save.expert = &map->layers[layer].experts[evicted % map->n_expert];
    store->saved_key[slot] = evicted;
    store->n_saving++;
}

bool moe_store_submit(moe_expert_store *store, uint32_t key, uint32_t slot, uint32_t evicted,
                      const moe_policy_access *access, moe_move_cause cause)
{
    MOE_ASSERT(moe_expert_cache_find(store->cache, key) == slot && !store->in_flight[slot]);
    const moe_tensor_map *map = store->options.map;
    moe_move move = {.expert = &map->layers[key / map->n_expert].experts[key % map->n_expert],
                     .cause = cause};
    if (store->host != NULL &&
        !moe_host_tier_take(store->host, key, access, cause == MOE_CAUSE_PREFETCH, &move)) {
        return false;
    }
    store->in_flight[slot] = store->host != NULL;
    if (store->host != NULL) {
        save_evicted(store, slot, evicted, access, &move);
    }
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        uint8_t *buffer = moe_slot_arena_buffer(&store->arena, slot, p);
        if (store->host != NULL) {
            move.device_buffers[p] = buffer;
        } else {
            move.buffers[p] = buffer;
        }
    }
    moe_slot_pages_taken(store->pages, slot);
    if (store->options.checksums != NULL) {
        move.checksums = store->options.checksums + (size_t)key * MOE_EXPERT_PARTS;
    }
    store->n_asked[cause]++;
    moe_mover_submit(store->mover, slot, &move);
    return true;
}

void moe_store_settle_host(moe_expert_store *store, uint32_t slot)
{
    if (!store->in_flight[slot]) {
        return;
    }
    const uint8_t *data[MOE_EXPERT_PARTS];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        data[p] = moe_mover_host_data(store->mover, slot, p);
    }
    store->in_flight[slot] = false;
    store->n_settled++;
    MOE_ASSERT(moe_mover_state(store->mover, slot) == MOE_SLOT_ABSENT ||
               moe_store_is_settled(moe_mover_state(store->mover, slot)));
    moe_host_tier_settle(store->host, moe_expert_cache_key_of(store->cache, slot), data);
    if (store->saved_key[slot] != MOE_KEY_NONE) {
        MOE_ASSERT(store->n_saving > 0);
        moe_host_tier_settle_saved(store->host, store->saved_key[slot],
                                   moe_mover_has_saved(store->mover, slot));
        store->saved_key[slot] = MOE_KEY_NONE;
        store->n_saving--;
    }
}

void moe_store_unprotect(moe_expert_store *store, uint32_t layer)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < store->n_protected; i++) {
        uint32_t key = store->protected_keys[i];
        if (layer == MOE_ALL_LAYERS || key / store->options.map->n_expert == layer) {
            store->is_protected[key] = false;
            moe_expert_cache_unpin(store->cache, key);
        } else {
            store->protected_keys[n_left++] = key;
        }
    }
    store->n_protected = n_left;
}

void moe_store_release_kept(moe_expert_store *store)
{
    uint32_t n_keys = store->options.map->n_layer * store->options.map->n_expert;
    for (uint32_t key = 0; key < n_keys && store->options.n_kept == 0; key++) {
        if (store->is_kept[key]) {
            store->is_kept[key] = false;
            moe_expert_cache_unpin(store->cache, key);
        }
    }
}

void moe_store_forget_protection(moe_expert_store *store, uint32_t key)
{
    for (uint32_t i = 0; store->is_protected[key] && i < store->n_protected; i++) {
        if (store->protected_keys[i] == key) {
            store->protected_keys[i] = store->protected_keys[--store->n_protected];
            store->is_protected[key] = false;
        }
    }
}

void moe_store_drop_unused(moe_expert_store *store, uint32_t key)
{
    moe_store_forget_protection(store, key);
    moe_expert_cache_drop(store->cache, key);
}

void moe_store_drop_key(moe_expert_store *store, uint32_t key, uint32_t slot)
{
    MOE_ASSERT(moe_expert_cache_find(store->cache, key) == slot);
    moe_mover_reset(store->mover, slot);
    moe_store_drop_unused(store, key);
}

void moe_store_note_brought(moe_expert_store *store, uint32_t key, uint64_t pass,
                            moe_move_cause cause)
{
    store->brought_pass[key] = pass + 1;
    store->brought_by[key] = cause;
}

bool moe_store_is_ready(const moe_expert_store *store, uint32_t key, uint32_t *slot)
{
    *slot = moe_expert_cache_find(store->cache, key);
    return *slot != MOE_SLOT_NONE && moe_mover_state(store->mover, *slot) == MOE_SLOT_READY;
}

/* ---- Prefetches ---- */

/* Checks the prefetches: unpins those that settled, drops those that failed (a demand will meet the
 * error itself) and, if `cancel`, cancels those that have not begun. */
static void settle_prefetches(moe_expert_store *store, bool cancel)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        uint32_t slot = store->prefetching[i];
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        if (cancel && moe_mover_cancel(store->mover, slot)) {
            moe_store_settle_host(store, slot);
            moe_store_drop_unused(store, key);
            continue;
        }
        moe_slot_state state = moe_mover_state(store->mover, slot);
        MOE_ASSERT(key != MOE_KEY_NONE && state != MOE_SLOT_ABSENT);
        if (moe_store_is_settled(state)) {
            moe_store_settle_host(store, slot);
        }
        if (state == MOE_SLOT_READY) {
            moe_expert_cache_unpin(store->cache, key);
        } else if (state == MOE_SLOT_FAILED) {
            moe_store_drop_key(store, key, slot);
        } else {
            store->prefetching[n_left++] = slot;
        }
    }
    store->n_prefetching = n_left;
}

void moe_store_settle_prefetches(moe_expert_store *store)
{
    settle_prefetches(store, false);
}

void moe_store_cancel_prefetches(moe_expert_store *store)
{
    settle_prefetches(store, true);
}

int moe_store_wait(moe_expert_store *store, const uint32_t *slots, uint32_t n, moe_error *err)
{
    moe_error reason;
    uint32_t hung;
    uint64_t begin = moe_now_ns();
    int status = moe_mover_wait(store->mover, slots, n, &store->request.cancel, &hung, &reason);
    store->wait_ns += moe_now_ns() - begin;
    if (status == MOE_ERR_CANCELLED) {
        moe_fail(err, status, "%.480s", reason.message);
    } else if (status != MOE_OK) {
        uint32_t key = moe_expert_cache_key_of(store->cache, hung);
        uint32_t n_expert = store->options.map->n_expert;
        moe_fail(err, status, "layer %u, expert %u: %.440s", key / n_expert, key % n_expert,
                 reason.message);
    }
    return status;
}

bool moe_store_prefetch_key(moe_expert_store *store, uint32_t key, const moe_policy_access *access,
                            moe_move_cause cause)
{
    uint32_t evicted;
    uint32_t slot = moe_expert_cache_prefetch(store->cache, key, access, &evicted);
    if (slot == MOE_SLOT_NONE) {
        return false;
    }
    evicted = moe_store_clear_slot(store, slot, evicted);
    if (!moe_store_submit(store, key, slot, evicted, access, cause)) {
        store->n_refused++;
        moe_expert_cache_drop(store->cache, key);
        return false;
    }
    moe_expert_cache_pin(store->cache, key);
    MOE_ASSERT(store->n_prefetching < store->arena.n_slots);
    store->prefetching[store->n_prefetching++] = slot;
    moe_store_note_brought(store, key, access->pass, cause);
    return true;
}

int moe_store_quiesce(moe_expert_store *store, moe_error *err)
{
    int status = MOE_OK;
    store->warming = false;
    moe_store_cancel_prefetches(store);
    while (store->n_prefetching > 0 && status == MOE_OK) {
        status = moe_store_wait(store, store->prefetching, store->n_prefetching, err);
        moe_store_settle_prefetches(store);
    }
    MOE_ASSERT(status != MOE_OK || store->n_prefetching == 0);
    return status;
}

void moe_store_stop_warming(moe_expert_store *store)
{
    if (store->warming) {
        store->warming = false;
        moe_store_cancel_prefetches(store);
    }
}
