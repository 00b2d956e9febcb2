/* SPDX-License-Identifier: MIT */
/* What drafts need from the store: which experts are resident, and prefetches of what verification
 * will need.
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

void moe_expert_store_residents(moe_expert_store *store, uint32_t layer, bool *resident)
{
    uint32_t slot;
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        resident[e] = moe_store_is_ready(store, moe_store_key(store, layer, e), &slot);
    }
}

/* A finished request is counted after its slot is READY. A caller that reads the number first and
 * then the residents may see a newer set, and will look again. */
uint64_t moe_expert_store_version(const moe_expert_store *store)
{
    return moe_expert_cache_n_changes(store->cache) + moe_mover_n_finished(store->mover);
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
