/* SPDX-License-Identifier: MIT */
/* What drafts need from the store: which experts are resident, and prefetches of what verification
 * will need.
 *
 * A foreseen expert is protected by the hold FORESEEN. The hold ends when the wave of the expert's
 * layer has taken its own holds, or when a wave finds every slot pinned. */
#include "offload/expert_store_state.h"

/* At most one slot in this many is held for foreseen experts. */
#define FORESIGHT_SLOT_DIVISOR 2

void moe_expert_store_residents(moe_expert_store *store, uint32_t layer, bool *resident)
{
    uint32_t slot;
    moe_store_settle_ahead(store);
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        resident[e] = moe_store_is_resident(store, moe_store_key(store, layer, e), &slot);
    }
}

/* The mover counts a finished request after the slot has become READY. So a caller that reads this
 * number first, and then the residents, may see a newer set than the number says; it will then look
 * again. */
uint64_t moe_expert_store_version(const moe_expert_store *store)
{
    return store->n_changes + moe_expert_cache_n_changes(store->cache) +
           moe_mover_n_finished(store->mover);
}

void moe_expert_store_scan(moe_expert_store *store, uint32_t layer, uint32_t expert)
{
    const uint32_t key =
        layer != MOE_NO_SCAN ? layer * store->options.map->n_expert + expert : MOE_NO_SCAN;
    moe_expert_cache_scan(store->cache, key);
    if (store->host != NULL) {
        moe_expert_cache_scan(moe_host_tier_cache(store->host), key);
    }
}

uint32_t moe_expert_store_scan_room(const moe_expert_store *store, uint32_t layer)
{
    return moe_expert_cache_scan_room(store->cache, layer);
}

uint32_t moe_expert_store_scan_spare(const moe_expert_store *store, uint32_t layer)
{
    return store->ram.cache != NULL ? moe_expert_cache_scan_room(store->ram.cache, layer) : 0;
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

void moe_store_unprotect(moe_expert_store *store, uint32_t layer)
{
    uint32_t before;
    for (uint32_t slot = moe_key_list_last(&store->foreseen, 0); slot != MOE_KEY_NONE;
         slot = before) {
        before = moe_key_list_before(&store->foreseen, slot);
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        if (layer == MOE_ALL_LAYERS || key / store->options.map->n_expert == layer) {
            moe_store_release(store, slot, MOE_HOLD_FORESEEN);
        }
    }
}

static void protect(moe_expert_store *store, uint32_t key)
{
    uint32_t slot = moe_expert_cache_find(store->cache, key);
    if (!moe_store_is_held(store, slot, MOE_HOLD_FORESEEN) &&
        store->n_foreseen < store->arena.n_slots / FORESIGHT_SLOT_DIVISOR) {
        moe_store_hold(store, slot, MOE_HOLD_FORESEEN);
    }
}

void moe_expert_store_foresee(moe_expert_store *store, uint32_t layer, uint64_t pass,
                              const uint32_t *experts, uint32_t n)
{
    uint32_t most = store->arena.n_slots / FORESIGHT_SLOT_DIVISOR;
    moe_policy_access access = {.pass = pass, .layer = layer};
    moe_store_settle_ahead(store);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = moe_store_key(store, layer, experts[i]);
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            (store->n_foreseen >= most || moe_store_is_elsewhere(store, key) ||
             !moe_store_prefetch_key(store, key, &access, MOE_CAUSE_VERIFY))) {
            continue;
        }
        protect(store, key);
    }
}

typedef struct still_foreseen {
    moe_still_foreseen_fn still;
    void *user;
} still_foreseen;

/* The moe_store_wanted_fn of moe_expert_store_forget(). */
static bool is_still_foreseen(const moe_expert_store *store, uint32_t key, void *user)
{
    const still_foreseen *f = user;
    return f->still(key / store->options.map->n_expert, key % store->options.map->n_expert,
                    f->user);
}

void moe_expert_store_forget(moe_expert_store *store, moe_still_foreseen_fn still, void *user)
{
    still_foreseen f = {still, user};
    uint32_t before;
    for (uint32_t slot = moe_key_list_last(&store->foreseen, 0); slot != MOE_KEY_NONE;
         slot = before) {
        before = moe_key_list_before(&store->foreseen, slot);
        if (!is_still_foreseen(store, moe_expert_cache_key_of(store->cache, slot), &f)) {
            moe_store_release(store, slot, MOE_HOLD_FORESEEN);
        }
    }
    moe_store_cancel_ahead(store, is_still_foreseen, &f);
}

/* ---- What a draft keeps ---- */

void moe_store_release_kept(moe_expert_store *store)
{
    for (uint32_t slot = 0; slot < store->arena.n_slots && store->options.n_kept == 0; slot++) {
        if (moe_store_is_held(store, slot, MOE_HOLD_KEPT)) {
            moe_store_release(store, slot, MOE_HOLD_KEPT);
        }
    }
}
