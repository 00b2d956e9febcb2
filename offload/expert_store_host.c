/* SPDX-License-Identifier: MIT */
/* Decides which of a layer's experts the host computes in place of moving them. */
#include "offload/expert_store_state.h"

/* At most this part of a size class's slots is held for the host at once; moves need the rest. */
#define HELD_DIVISOR 2

/* Inserts position `at` into the list of n, which is ordered by rows. */
static void insert_by_rows(moe_expert_store *store, uint32_t n, uint32_t at)
{
    MOE_ASSERT(n < store->options.map->n_expert && at < store->request.n);
    uint32_t rows = store->request.n_rows[at];
    uint32_t i = n;
    while (i > 0 && store->host_rows[i - 1] > rows) {
        store->host_rows[i] = store->host_rows[i - 1];
        store->host_positions[i] = store->host_positions[i - 1];
        i--;
    }
    store->host_rows[i] = rows;
    store->host_positions[i] = at;
}

static moe_split_work list_candidates(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    const moe_tensor_map *map = store->options.map;
    moe_split_work work = {.n_rows = store->host_rows,
                           .expert_bytes =
                               moe_expert_ref_bytes(&map->layers[request->layer].experts[0])};
    for (uint32_t i = 0; i < request->n; i++) {
        uint32_t key = store->keys[i];
        if (moe_expert_cache_find(store->cache, key) != MOE_SLOT_NONE) {
            work.n_resident++;
            work.n_resident_rows += request->n_rows[i];
        } else if (moe_host_tier_has(store->host, key)) {
            insert_by_rows(store, work.n++, i);
        } else {
            work.n_disk++;
        }
    }
    return work;
}

static uint32_t choose(moe_expert_store *store, const moe_split_work *work)
{
    if (store->options.host_compute == MOE_SWITCH_ON) {
        return work->n;
    }
    moe_mover_stats moves;
    moe_mover_get_stats(store->mover, &moves);
    if (moves.link_ns_per_byte > 0.0) {
        moe_host_split_note_link(&store->split, moves.link_ns_per_byte);
    }
    return moe_host_split_choose(&store->split, work);
}

void moe_store_choose_host(moe_expert_store *store)
{
    store->n_host = 0;
    if (store->host == NULL || store->options.host_compute == MOE_SWITCH_OFF) {
        return;
    }
    moe_split_work work = list_candidates(store);
    uint32_t n = choose(store, &work);
    uint32_t most = moe_host_tier_slots_of(store->host, store->request.layer) / HELD_DIVISOR;
    store->n_host = n < most ? n : most;
    MOE_ASSERT(n <= work.n);
    for (uint32_t i = 0; i < store->n_host; i++) {
        uint32_t at = store->host_positions[i];
        MOE_ASSERT(!store->handled[at]);
        store->handled[at] = true;
        store->host_keys[i] = store->keys[at];
        moe_host_tier_hold(store->host, store->keys[at], &store->accesses[at]);
    }
    store->n_host_computed += store->n_host;
}

void moe_expert_store_take_host(moe_expert_store *store, uint32_t *positions,
                                moe_expert_view *views, uint32_t *n)
{
    *n = store->n_host;
    for (uint32_t i = 0; i < store->n_host; i++) {
        uint32_t key = store->host_keys[i];
        positions[i] = store->host_positions[i];
        moe_store_fill_view(store, key, moe_host_tier_data(store->host, key), &views[i]);
    }
}

void moe_expert_store_host_done(moe_expert_store *store, uint64_t pass)
{
    moe_policy_access access = {.pass = pass};
    for (uint32_t i = 0; i < store->n_host; i++) {
        moe_host_tier_release(store->host, store->host_keys[i]);
    }
    for (uint32_t i = 0; i < store->n_host && !store->options.keep_nothing; i++) {
        uint32_t key = store->host_keys[i];
        access.layer = key / store->options.map->n_expert;
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            moe_expert_cache_has_room(store->cache, key)) {
            (void)moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH);
        }
    }
    store->n_host = 0;
}

void moe_expert_store_note_host(moe_expert_store *store, uint32_t n, uint32_t n_rows, uint64_t ns)
{
    moe_host_split_note_host(&store->split, n, n_rows, ns);
}

void moe_expert_store_note_device(moe_expert_store *store, uint32_t n, uint32_t n_rows, uint64_t ns)
{
    moe_host_split_note_device(&store->split, n, n_rows, ns);
}
