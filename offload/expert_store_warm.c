/* SPDX-License-Identifier: MIT */
/* Fills empty slots while no layer is at work, by prefetches that no layer waits for. The store
 * hands all of them to the mover at once, which needs no thread of its own for them. They cost a
 * demand only the reads that are already under way: they never evict, and the first layer cancels
 * those that have not begun. (A slot in the queue is pinned, so leaving it there would take slots
 * from the layer.) */
#include "offload/expert_store_state.h"
#include "runtime/base/error.h"

/* True when the key is not in the cache and finds an empty slot. */
static bool has_place(const moe_expert_store *store, uint32_t key)
{
    return moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
           moe_expert_cache_has_room(store->cache, key);
}

/* False when all of the host tier's slots are in use by reads under way. */
static bool ask_for(moe_expert_store *store, uint32_t key)
{
    moe_policy_access access = {.layer = key / store->options.map->n_expert};
    return moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH);
}

uint32_t moe_expert_store_warm(moe_expert_store *store, const uint32_t *keys, uint32_t n)
{
    uint32_t n_asked = 0;
    moe_store_settle_prefetches(store);
    for (uint32_t i = 0; i < n; i++) {
        if (!has_place(store, keys[i])) {
            continue;
        }
        if (!ask_for(store, keys[i])) {
            break;
        }
        n_asked++;
    }
    store->warming |= n_asked > 0;
    return n_asked;
}

typedef struct filling {
    uint32_t n_keys;
    moe_store_progress_fn report;
    void *user;
} filling;

/* Waits until at least one request under way ends. The first n keys have been handled or are under
 * way. */
static int await_one(moe_expert_store *store, const filling *f, uint32_t n_begun, moe_error *err)
{
    int status = moe_store_wait(store, store->prefetching, store->n_prefetching, err);
    moe_store_settle_prefetches(store);
    double share = (double)(n_begun - store->n_prefetching) / (double)f->n_keys;
    if (status == MOE_OK && f->report != NULL && !f->report(share, f->user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "opening was cancelled");
    }
    return status;
}

int moe_expert_store_fill(moe_expert_store *store, const uint32_t *keys, uint32_t n,
                          moe_store_progress_fn report, void *user, moe_error *err)
{
    filling f = {.n_keys = n, .report = report, .user = user};
    int status = MOE_OK;
    moe_store_settle_prefetches(store);
    for (uint32_t i = 0; i < n; i++) {
        while (has_place(store, keys[i]) && !ask_for(store, keys[i])) {
            if (store->n_prefetching == 0) {
                return MOE_OK; /* the host tier has no slot to spare */
            }
            status = await_one(store, &f, i, err);
            if (status != MOE_OK) {
                return status;
            }
        }
    }
    while (store->n_prefetching > 0 && status == MOE_OK) {
        status = await_one(store, &f, n, err);
    }
    return status;
}

void moe_store_stop_warming(moe_expert_store *store)
{
    if (store->warming) {
        store->warming = false;
        moe_store_cancel_prefetches(store);
    }
}
