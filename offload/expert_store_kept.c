/* SPDX-License-Identifier: MIT */
/* Loads experts onto the device when the store opens, where they stay. */
#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* A class whose slots are all kept would have none for the experts that come and go. */
static int check_kept_fit(const moe_expert_store *store, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    uint64_t n_more = 0;
    uint64_t bytes_more = 0;
    for (uint32_t c = 0; c < store->arena.n_classes; c++) {
        const moe_slot_class *class = &store->arena.classes[c];
        uint32_t n = 1;
        for (uint32_t i = 0; i < o->n_kept; i++) {
            n += store->arena.class_of_layer[o->kept[i] / o->map->n_expert] == c;
        }
        if (n > class->n_slots) {
            n_more += n - class->n_slots;
            bytes_more += (n - class->n_slots) * class->slot_bytes;
        }
    }
    return n_more == 0
               ? MOE_OK
               : moe_fail(err, MOE_ERR_BUDGET,
                          "the %u experts to be kept need %llu slots more (%llu bytes); "
                          "raise the memory budget or the expert cache",
                          o->n_kept, (unsigned long long)n_more, (unsigned long long)bytes_more);
}

/* Waits for the first n of them. */
static int await_kept(moe_expert_store *store, uint32_t n, moe_error *err)
{
    const moe_expert_store_options *o = &store->options;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = moe_expert_cache_find(store->cache, o->kept[i]);
        int waited = moe_store_wait(store, &slot, 1, err);
        if (waited != MOE_OK) {
            return waited;
        }
        moe_store_settle_host(store, slot);
        if (moe_mover_state(store->mover, slot) == MOE_SLOT_FAILED) {
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

/* Reads the experts as demands, because a failed prefetch is not reported, and leaves them pinned.
 */
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
        MOE_ASSERT(slot != MOE_SLOT_NONE && !store->is_kept[key]); /* check_kept_fit() */
        moe_expert_cache_pin(store->cache, key);
        store->is_kept[key] = true;
        if (!moe_store_submit(store, key, slot, &access, MOE_CAUSE_DEMAND)) {
            /* The host tier is smaller; requests under way free its slots. */
            status = await_kept(store, i, err);
            (void)moe_store_submit(store, key, slot, &access, MOE_CAUSE_DEMAND);
        }
    }
    status = status != MOE_OK ? status : await_kept(store, o->n_kept, err);
    store->options.kept = NULL; /* the caller's, and no longer needed */
    return status;
}
