/* SPDX-License-Identifier: MIT */
/* Brings experts in while no layer is at work: kept experts when the store opens, and later experts
 * for empty slots.
 *
 * Empty slots are filled by prefetches that no layer waits for. The store hands all of them to the
 * mover at once; it needs no further thread. They never evict. They delay a demand only by the
 * reads that are already under way, because the first layer cancels the reads that have not begun.
 * (A slot whose read is queued is pinned, so leaving it queued would take slots from the layer.) If
 * each expert has a slot, nothing is cancelled: the reads go on between demands until all experts
 * are there. */
#include "offload/expert_store_state.h"
#include "runtime/base/error.h"

/* ---- Experts that stay for good ---- */

/* Refuses kept experts that would fill all slots of a domain (layers that share slots): its other
 * experts would have no slot. */
static int check_kept_fit(const moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    uint64_t n_more = 0;
    uint64_t bytes_more = 0;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(store->cache, d, &size); d++) {
        uint32_t n = 1;
        for (uint32_t i = 0; i < o->n_kept; i++) {
            n += moe_expert_cache_domain_of(store->cache, o->kept[i] / o->map->n_expert) == d;
        }
        if (n > size.n_slots) {
            n_more += n - size.n_slots;
            bytes_more += (n - size.n_slots) * store->arena.classes[size.class_id].slot_bytes;
        }
    }
    return n_more == 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_BUDGET,
                          "the %u experts to be kept need %llu slots more (%llu bytes); "
                          "raise the memory budget or the expert cache",
                          o->n_kept, (unsigned long long)n_more, (unsigned long long)bytes_more);
}

/* Waits for the first n kept experts. */
static int await_kept(moe_expert_store *store, uint32_t n, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = moe_expert_cache_find(store->cache, o->kept[i]);
        if (moe_store_use(store, slot) != MOE_USE_MOVING) {
            continue;
        }
        int waited = moe_store_wait(store, &slot, 1, err);
        if (waited != MOE_OK) {
            return waited;
        }
        if (moe_store_settle(store, slot) == MOE_OUTCOME_FAILED) {
            moe_error reason = {"reading failed"};
            uint32_t failed = slot;
            int status = moe_mover_last_error(store->mover, &failed, &reason);
            uint32_t key = moe_expert_cache_key_of(store->cache, failed);
            return moe_fail(err, status, "layer %u, expert %u: %.440s", key / o->map->n_expert,
                            key % o->map->n_expert, reason.message);
        }
    }
    return MOE_OK;
}

/* Reads kept experts as demands, because failed prefetches are not reported. Leaves them pinned. */
int moe_store_load_kept(moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    if (o->n_kept == 0) {
        return MOE_OK;
    }
    int status = check_kept_fit(store, err);
    for (uint32_t i = 0; i < o->n_kept && status == MOE_OK; i++) {
        uint32_t key = o->kept[i];
        moe_policy_access access = {.layer = key / o->map->n_expert};
        uint32_t evicted;
        uint32_t slot = moe_expert_cache_prefetch(store->cache, key, &access, &evicted);
        /* check_kept_fit() has made sure. */
        MOE_ASSERT(slot != MOE_SLOT_NONE && evicted == MOE_KEY_NONE);
        (void)moe_store_give(store, slot, evicted);
        moe_store_hold(store, slot, MOE_HOLD_KEPT);
        if (!moe_store_submit(store, slot, MOE_KEY_NONE, &access, MOE_CAUSE_DEMAND)) {
            /* The host tier is smaller; requests that end free its slots. */
            status = await_kept(store, i, err);
            (void)moe_store_submit(store, slot, MOE_KEY_NONE, &access, MOE_CAUSE_DEMAND);
        }
    }
    status = status != MOE_OK ? status : await_kept(store, o->n_kept, err);
    store->options.kept = NULL; /* the caller may free the list now */
    return status;
}

/* ---- Empty slots ---- */

/* True when the key is not in the cache and an empty slot is there for it. */
static bool has_place(const moe_expert_store *store, uint32_t key)
{
    return moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
           moe_expert_cache_has_room(store->cache, key);
}

/* Requests a key. False when reads under way use all slots of the host tier. */
static bool ask_for(moe_expert_store *store, uint32_t key)
{
    moe_policy_access access = {.layer = key / store->options.map->n_expert};
    return moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH);
}

static uint32_t n_experts(const moe_expert_store *store)
{
    const moe_tensor_map *map = store->options.map;
    uint32_t n = 0;
    for (uint32_t l = 0; l < map->n_layer; l++) {
        n += map->layers[l].experts != NULL ? map->n_expert : 0;
    }
    return n;
}

uint32_t moe_expert_store_warm(moe_expert_store *store, const uint32_t *keys, uint32_t n)
{
    uint32_t n_asked = 0;
    moe_store_settle_ahead(store);
    if (store->fits_all && n == n_experts(store)) {
        store->warming = true;
        moe_mover_yield_prefetches(store->mover, true, store->pages);
    }
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

/* Waits until at least one request under way ends. The first n keys are done or under way. */
static int await_one(moe_expert_store *store, const filling *f, uint32_t n_begun, moe_error *err)
{
    MOE_TRY(moe_store_wait_ahead(store, err));
    double share = (double)(n_begun - store->n_ahead) / (double)f->n_keys;
    if (f->report != NULL && !f->report(share, f->user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "opening was cancelled");
    }
    return MOE_OK;
}

int moe_expert_store_fill(moe_expert_store *store, const uint32_t *keys, uint32_t n,
                          moe_store_progress_fn report, void *user, moe_error *err)
{
    filling f = {.n_keys = n, .report = report, .user = user};
    moe_store_settle_ahead(store);
    for (uint32_t i = 0; i < n; i++) {
        while (has_place(store, keys[i]) && !ask_for(store, keys[i])) {
            if (store->n_ahead == 0) {
                return MOE_OK; /* the host tier has no slot to spare */
            }
            MOE_TRY(await_one(store, &f, i, err));
        }
    }
    while (store->n_ahead > 0) {
        MOE_TRY(await_one(store, &f, n, err));
    }
    return MOE_OK;
}
