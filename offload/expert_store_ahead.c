/* SPDX-License-Identifier: MIT */
/* Moves that no layer waits for: prefetches, moves for a draft's forecast, moves of a warm start,
 * and moves that a layer left under way when it ended early. Their slots are held AHEAD until they
 * settle. */
#include "offload/expert_store_state.h"
#include "runtime/base/error.h"

bool moe_store_prefetch_key(moe_expert_store *store, uint32_t key, const moe_policy_access *access,
                            moe_move_cause cause)
{
    uint32_t evicted;
    uint32_t slot = moe_expert_cache_prefetch(store->cache, key, access, &evicted);
    if (slot == MOE_SLOT_NONE) {
        return false;
    }
    evicted = moe_store_give(store, slot, evicted);
    if (!moe_store_submit(store, slot, evicted, access, cause)) {
        store->n_refused++;
        moe_store_drop(store, slot);
        return false;
    }
    moe_store_hold(store, slot, MOE_HOLD_AHEAD);
    moe_store_note_brought(store, slot, access->pass, cause);
    return true;
}

void moe_store_settle_ahead(moe_expert_store *store)
{
    uint32_t before;
    for (uint32_t slot = moe_key_list_last(&store->ahead, 0); slot != MOE_KEY_NONE; slot = before) {
        before = moe_key_list_before(&store->ahead, slot);
        switch (moe_store_settle(store, slot)) {
        case MOE_OUTCOME_ARRIVED:
            moe_store_release(store, slot, MOE_HOLD_AHEAD);
            break;
        case MOE_OUTCOME_FAILED:
            moe_store_drop(store, slot);
            break;
        case MOE_OUTCOME_NONE:
        case MOE_OUTCOME_MOVING:
            break;
        }
    }
    store->warming = store->warming && store->n_ahead > 0;
}

void moe_store_cancel_ahead(moe_expert_store *store, moe_store_wanted_fn wanted, void *user)
{
    uint32_t before;
    if (wanted != NULL && moe_store_reads_all(store)) {
        return;
    }
    for (uint32_t slot = moe_key_list_last(&store->ahead, 0); slot != MOE_KEY_NONE; slot = before) {
        before = moe_key_list_before(&store->ahead, slot);
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        if ((wanted == NULL || !wanted(store, key, user)) && moe_store_cancel(store, slot)) {
            moe_store_drop(store, slot);
        }
    }
}

int moe_store_wait_ahead(moe_expert_store *store, moe_error *err)
{
    uint32_t n = 0;
    MOE_ASSERT(store->n_ahead > 0);
    for (uint32_t slot = moe_key_list_last(&store->ahead, 0); slot != MOE_KEY_NONE;
         slot = moe_key_list_before(&store->ahead, slot)) {
        store->waiting[n++] = slot;
    }
    int status = moe_store_wait(store, store->waiting, n, err);
    moe_store_settle_ahead(store);
    return status;
}

int moe_store_quiesce(moe_expert_store *store, moe_error *err)
{
    int status = MOE_OK;
    store->warming = false;
    moe_mover_yield_prefetches(store->mover, false, NULL);
    moe_store_cancel_ahead(store, NULL, NULL);
    moe_store_settle_ahead(store);
    while (store->n_ahead > 0 && status == MOE_OK) {
        status = moe_store_wait_ahead(store, err);
    }
    MOE_ASSERT(status != MOE_OK || store->n_ahead == 0);
    return status;
}

void moe_store_stop_warming(moe_expert_store *store)
{
    if (store->warming && !moe_store_reads_all(store)) {
        store->warming = false;
        moe_store_cancel_ahead(store, NULL, NULL);
    }
}

void moe_expert_store_skip(moe_expert_store *store, moe_elsewhere_fn elsewhere, void *user)
{
    store->elsewhere = elsewhere;
    store->elsewhere_user = user;
}

bool moe_store_is_elsewhere(const moe_expert_store *store, uint32_t key)
{
    const uint32_t n_expert = store->options.map->n_expert;
    return store->elsewhere != NULL &&
           store->elsewhere(store->elsewhere_user, key / n_expert, key % n_expert);
}

void moe_expert_store_prefetch(moe_expert_store *store, uint32_t layer, uint64_t pass,
                               const uint32_t *experts, uint32_t n, uint32_t max_moves)
{
    moe_store_settle_ahead(store);
    moe_policy_access access = {.pass = pass, .layer = layer};
    for (uint32_t i = 0; i < n && store->n_ahead < max_moves; i++) {
        uint32_t key = moe_store_key(store, layer, experts[i]);
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            !moe_store_is_elsewhere(store, key) &&
            !moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH)) {
            return;
        }
    }
}
