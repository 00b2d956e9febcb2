/* SPDX-License-Identifier: MIT */
/* Filling empty slots while nobody asks for anything: prefetches that no layer waits for. All of
 * them are handed to the mover at once, which works them off in its own time, so no thread is
 * needed. They cost a demand nothing but what is already being read when it comes: they never
 * evict, and the first layer that is asked for takes back what has not begun (a slot that waits for
 * its turn is pinned, so leaving them would take slots from the layer). */
#include "offload/expert_store_internal.h"
#include "runtime/base/error.h"

uint32_t moe_expert_store_warm(moe_expert_store *store, const uint32_t *keys, uint32_t n)
{
    uint32_t n_asked = 0;
    moe_store_settle_prefetches(store);
    for (uint32_t i = 0; i < n; i++) {
        moe_policy_access access = {.layer = keys[i] / store->options.map->n_expert};
        if (moe_expert_cache_find(store->cache, keys[i]) != MOE_SLOT_NONE ||
            !moe_expert_cache_has_room(store->cache, keys[i])) {
            continue;
        }
        if (!moe_store_prefetch_key(store, keys[i], &access, MOE_CAUSE_PREFETCH)) {
            break; /* the host tier's slots are all on their way */
        }
        n_asked++;
    }
    store->warming |= n_asked > 0;
    return n_asked;
}

/* At least one of those under way comes to its end. */
static int await_one(moe_expert_store *store, moe_error *err)
{
    int status = moe_store_wait(store, store->prefetching, store->n_prefetching, err);
    moe_store_settle_prefetches(store);
    return status;
}

int moe_expert_store_fill(moe_expert_store *store, const uint32_t *keys, uint32_t n,
                          moe_store_progress_fn report, void *user, moe_error *err)
{
    int status = MOE_OK;
    moe_store_settle_prefetches(store);
    for (uint32_t next = 0; status == MOE_OK && (next < n || store->n_prefetching > 0);) {
        moe_policy_access access = {.layer =
                                        next < n ? keys[next] / store->options.map->n_expert : 0};
        bool wanted = next < n &&
                      moe_expert_cache_find(store->cache, keys[next]) == MOE_SLOT_NONE &&
                      moe_expert_cache_has_room(store->cache, keys[next]);
        if (next < n &&
            (!wanted || moe_store_prefetch_key(store, keys[next], &access, MOE_CAUSE_PREFETCH))) {
            next++;
            continue;
        }
        if (store->n_prefetching == 0) {
            break; /* the host tier has no slot to spare */
        }
        status = await_one(store, err);
        double share = (double)(next - store->n_prefetching) / (double)n;
        if (status == MOE_OK && report != NULL && !report(share, user)) {
            status = moe_fail(err, MOE_ERR_CANCELLED, "opening was cancelled");
        }
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
