/* SPDX-License-Identifier: MIT */
/* What drafts need from the store: which experts are resident, views of them without a request,
 * prefetches of what verification will need, and experts that stay for the next draft.
 *
 * Protection is a separate pin, so it ends independently of a prefetch's and a wave's. It ends when
 * the layer's wave has taken its own pins, or when a wave finds every slot pinned. */
#include <stdlib.h>

#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* At most this part of the slots is held for foreseen experts. */
#define FORESIGHT_SLOT_DIVISOR 2

int moe_store_init_draft(moe_expert_store *store, moe_error *err)
{
    size_t n_keys = (size_t)store->options.map->n_layer * store->options.map->n_expert;
    store->is_kept = moe_calloc(n_keys, sizeof *store->is_kept);
    store->is_protected = moe_calloc(n_keys, sizeof *store->is_protected);
    store->protected_keys = moe_calloc(store->arena.n_slots, sizeof *store->protected_keys);
    store->brought_pass = moe_calloc(n_keys, sizeof *store->brought_pass);
    store->brought_by = moe_calloc(n_keys, sizeof *store->brought_by);
    if (store->is_kept == NULL || store->is_protected == NULL || store->protected_keys == NULL ||
        store->brought_pass == NULL || store->brought_by == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    return MOE_OK;
}

void moe_store_free_draft(moe_expert_store *store)
{
    free(store->is_kept);
    free(store->brought_pass);
    free(store->brought_by);
    free(store->is_protected);
    free(store->protected_keys);
}

static bool is_ready(const moe_expert_store *store, uint32_t key, uint32_t *slot)
{
    *slot = moe_expert_cache_find(store->cache, key);
    return *slot != MOE_SLOT_NONE && moe_mover_state(store->mover, *slot) == MOE_SLOT_READY;
}

void moe_expert_store_residents(moe_expert_store *store, uint32_t layer, bool *resident)
{
    uint32_t slot;
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        resident[e] = is_ready(store, moe_store_key(store, layer, e), &slot);
    }
}

/* A finished request is counted after its slot is READY. A caller that reads the number first and
 * then the residents may see a newer set, and will look again. */
uint64_t moe_expert_store_version(const moe_expert_store *store)
{
    return moe_expert_cache_n_changes(store->cache) + moe_mover_n_finished(store->mover);
}

void moe_expert_store_peek(const moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                           uint32_t n, moe_expert_view *views)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = moe_store_key(store, layer, experts[i]);
        uint32_t slot = moe_expert_cache_find(store->cache, key);
        MOE_ASSERT(slot != MOE_SLOT_NONE);
        const uint8_t *data[MOE_EXPERT_PARTS];
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            data[p] = moe_mover_data(store->mover, slot, p);
        }
        moe_store_fill_view(store, key, data, &views[i]);
    }
}

void moe_expert_store_lookahead(moe_expert_store *store, uint64_t first_pass,
                                const moe_policy_forecast *uses, size_t n)
{
    moe_expert_cache_lookahead(store->cache, first_pass, uses, n);
    if (store->host != NULL) {
        moe_expert_cache_lookahead(moe_host_tier_cache(store->host), first_pass, uses, n);
    }
}

/* ---- Foresight ---- */

static void protect(moe_expert_store *store, uint32_t key)
{
    if (store->is_protected[key] ||
        store->n_protected >= store->arena.n_slots / FORESIGHT_SLOT_DIVISOR) {
        return;
    }
    MOE_ASSERT(store->n_protected < store->arena.n_slots);
    store->is_protected[key] = true;
    store->protected_keys[store->n_protected++] = key;
    moe_expert_cache_pin(store->cache, key);
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

void moe_expert_store_foresee(moe_expert_store *store, uint32_t layer, uint64_t pass,
                              const uint32_t *experts, uint32_t n)
{
    uint32_t most = store->arena.n_slots / FORESIGHT_SLOT_DIVISOR;
    moe_policy_access access = {.pass = pass, .layer = layer};
    moe_store_settle_prefetches(store);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = moe_store_key(store, layer, experts[i]);
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            (store->n_protected >= most ||
             !moe_store_prefetch_key(store, key, &access, MOE_CAUSE_VERIFY))) {
            continue;
        }
        protect(store, key);
    }
}

void moe_expert_store_forget(moe_expert_store *store, moe_still_foreseen_fn still, void *user)
{
    uint32_t n_expert = store->options.map->n_expert;
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < store->n_protected; i++) {
        uint32_t key = store->protected_keys[i];
        if (still(key / n_expert, key % n_expert, user)) {
            store->protected_keys[n_left++] = key;
        } else {
            store->is_protected[key] = false;
            moe_expert_cache_unpin(store->cache, key);
        }
    }
    store->n_protected = n_left;
    n_left = 0;
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        uint32_t slot = store->prefetching[i];
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        if (!still(key / n_expert, key % n_expert, user) && moe_mover_cancel(store->mover, slot)) {
            moe_store_settle_host(store, slot);
            moe_store_forget_protection(store, key);
            moe_expert_cache_drop(store->cache, key);
        } else {
            store->prefetching[n_left++] = slot;
        }
    }
    store->n_prefetching = n_left;
}

/* ---- What foresight was worth ---- */

static uint64_t bytes_of(const moe_expert_store *store, uint32_t key)
{
    const moe_tensor_map *map = store->options.map;
    const moe_expert_ref *expert = &map->layers[key / map->n_expert].experts[key % map->n_expert];
    uint64_t bytes = 0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        bytes += expert->parts[p].size;
    }
    return bytes;
}

static moe_verify_state state_of(const moe_expert_store *store, const moe_layer_access *access,
                                 uint32_t key)
{
    if (!access->hit) {
        return MOE_VERIFY_MISSED;
    }
    if (store->brought_by[key] == MOE_CAUSE_PREFETCH) {
        return MOE_VERIFY_PREDICTED;
    }
    moe_slot_state state = moe_mover_state(store->mover, access->slot);
    return state == MOE_SLOT_READY    ? MOE_VERIFY_READY
           : state == MOE_SLOT_QUEUED ? MOE_VERIFY_QUEUED
                                      : MOE_VERIFY_LOADING;
}

void moe_store_count_verified(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave && store->request.verifies; i++) {
        const moe_layer_access *access = &store->wave[i];
        uint32_t key = store->keys[access->position];
        /* An expert that was brought for an earlier pass, and has stayed, was resident. */
        if (!access->hit || store->brought_pass[key] == store->request.pass + 1) {
            store->bytes_verify[state_of(store, access, key)] += bytes_of(store, key);
        }
    }
}

/* ---- What stays for the next draft ---- */

static bool is_named(const moe_layer_request *request, uint32_t expert)
{
    for (uint32_t i = 0; i < request->n_keep; i++) {
        if (request->keep[i] == expert) {
            return true;
        }
    }
    return false;
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

/* Only experts that are ready are kept; one that failed to arrive has no bytes to keep. */
void moe_store_update_kept(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    uint32_t slot;
    if (request->keep == NULL || request->n == 0) {
        return;
    }
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        uint32_t key = moe_store_key(store, request->layer, e);
        bool keep = is_named(request, e) && is_ready(store, key, &slot);
        if (keep && !store->is_kept[key]) {
            moe_expert_cache_pin(store->cache, key);
        } else if (!keep && store->is_kept[key]) {
            moe_expert_cache_unpin(store->cache, key);
            if (store->options.keep_nothing && is_ready(store, key, &slot)) {
                moe_mover_reset(store->mover, slot);
                moe_expert_cache_drop(store->cache, key);
            }
        }
        store->is_kept[key] = keep;
    }
}
