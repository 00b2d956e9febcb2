/* SPDX-License-Identifier: MIT */
#include "offload/expert_store.h"

#include <stdlib.h>
#include <string.h>

#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* ---- Prefetches ---- */

/* Whether the list of prefetches holds a pin of the slot. What a failed layer left under way is in
 * it, too, and may become ready at any moment. */
static bool is_prefetching(const moe_expert_store *store, uint32_t slot)
{
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        if (store->prefetching[i] == slot) {
            return true;
        }
    }
    return false;
}

/* The wave's own pin replaces the prefetch's, so the slot leaves the list of prefetches. */
static void adopt_prefetch(moe_expert_store *store, const moe_layer_access *access)
{
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        if (store->prefetching[i] == access->slot) {
            store->prefetching[i] = store->prefetching[--store->n_prefetching];
            moe_expert_cache_unpin(store->cache, store->keys[access->position]);
            return;
        }
    }
}

void moe_expert_store_prefetch(moe_expert_store *store, uint32_t layer, uint64_t pass,
                               const uint32_t *experts, uint32_t n, uint32_t max_moves)
{
    moe_store_settle_prefetches(store);
    moe_policy_access access = {.pass = pass, .layer = layer};
    for (uint32_t i = 0; i < n && store->n_prefetching < max_moves; i++) {
        uint32_t key = moe_store_key(store, layer, experts[i]);
        if (moe_expert_cache_find(store->cache, key) == MOE_SLOT_NONE &&
            !moe_store_prefetch_key(store, key, &access, MOE_CAUSE_PREFETCH)) {
            return;
        }
    }
}

uint64_t moe_expert_store_wait_ns(const moe_expert_store *store)
{
    return store->wait_ns;
}

void moe_expert_store_note_cancel(moe_expert_store *store)
{
    moe_mover_abandon(store->mover);
}

bool moe_expert_store_is_idle(const moe_expert_store *store)
{
    return moe_mover_is_idle(store->mover);
}

/* ---- A layer ---- */

/* Cancels prefetches of this layer that the request does not want and that have not begun. */
static void cancel_unwanted(moe_expert_store *store, const moe_layer_request *request)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < store->n_prefetching; i++) {
        uint32_t slot = store->prefetching[i];
        uint32_t key = moe_expert_cache_key_of(store->cache, slot);
        bool wanted = key / store->options.map->n_expert != request->layer;
        for (uint32_t e = 0; e < request->n && !wanted; e++) {
            wanted = moe_store_key(store, request->layer, request->experts[e]) == key;
        }
        if (!wanted && moe_mover_cancel(store->mover, slot)) {
            moe_store_settle_host(store, slot);
            moe_store_drop_unused(store, key);
        } else {
            store->prefetching[n_left++] = slot;
        }
    }
    store->n_prefetching = n_left;
}

static void end_wave(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_expert_cache_unpin(store->cache, store->keys[store->wave[i].position]);
    }
    store->n_wave = store->n_delivered = 0;
    MOE_ASSERT(store->n_host <= store->request.n);
}

static bool is_named(const moe_layer_request *request, uint32_t expert)
{
    for (uint32_t i = 0; i < request->n_keep; i++) {
        if (request->keep[i] == expert) {
            return true;
        }
    }
    return false;
}

/* Only experts that are ready are kept; one that failed to arrive has no bytes to keep. */
static void update_kept(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    uint32_t slot;
    if (request->keep == NULL || request->n == 0) {
        return;
    }
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        uint32_t key = moe_store_key(store, request->layer, e);
        bool keep = is_named(request, e) && moe_store_is_ready(store, key, &slot);
        if (keep && !store->is_kept[key]) {
            moe_expert_cache_pin(store->cache, key);
        } else if (!keep && store->is_kept[key]) {
            moe_expert_cache_unpin(store->cache, key);
            if (store->options.keep_nothing && moe_store_is_ready(store, key, &slot) &&
                !is_prefetching(store, slot)) {
                moe_mover_reset(store->mover, slot);
                moe_expert_cache_drop(store->cache, key);
            }
        }
        store->is_kept[key] = keep;
    }
}

static void end_layer(moe_expert_store *store)
{
    end_wave(store);
    moe_store_settle_prefetches(store);
    update_kept(store);
    for (uint32_t i = 0; store->options.keep_nothing && i < store->request.n; i++) {
        uint32_t slot = moe_expert_cache_find(store->cache, store->keys[i]);
        bool keep = store->is_kept[store->keys[i]];
        if (slot != MOE_SLOT_NONE && !keep && !is_prefetching(store, slot) &&
            moe_mover_state(store->mover, slot) == MOE_SLOT_READY) {
            moe_store_drop_key(store, store->keys[i], slot);
        }
    }
    store->request.n = 0;
    store->request.cancel = (moe_wait_cancel){NULL, NULL};
}

static uint32_t access_wave(moe_expert_store *store)
{
    return moe_layer_access_wave(store->cache, store->keys, store->accesses, store->request.n,
                                 store->handled, store->wave);
}

static bool submit_demand(moe_expert_store *store, const moe_layer_access *access)
{
    return moe_store_submit(store, store->keys[access->position], access->slot, access->evicted,
                            &store->accesses[access->position], MOE_CAUSE_DEMAND);
}

static uint64_t expert_bytes(const moe_expert_store *store, uint32_t key)
{
    const moe_tensor_map *map = store->options.map;
    return moe_expert_ref_bytes(&map->layers[key / map->n_expert].experts[key % map->n_expert]);
}

/* How far an expert of a verification was when it was asked for. */
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

static void count_verified(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave && store->request.verifies; i++) {
        const moe_layer_access *access = &store->wave[i];
        uint32_t key = store->keys[access->position];
        /* An expert that was brought for an earlier pass, and has stayed, was resident. */
        if (!access->hit || store->brought_pass[key] == store->request.pass + 1) {
            store->bytes_verify[state_of(store, access, key)] += expert_bytes(store, key);
        }
    }
}

/* Requests the next wave's missing experts from the mover; 0 when the layer is done. */
static int begin_wave(moe_expert_store *store, moe_error *err)
{
    end_wave(store);
    bool all_handled = true;
    for (uint32_t i = 0; i < store->request.n; i++) {
        all_handled &= store->handled[i];
    }
    if (all_handled) {
        return MOE_OK;
    }
    store->n_wave = access_wave(store);
    if (store->n_wave == 0) {
        int status = moe_store_quiesce(store, err);
        if (status != MOE_OK) {
            return status;
        }
        moe_store_unprotect(store, MOE_ALL_LAYERS);
        store->n_wave = access_wave(store);
    }
    if (store->n_wave == 0) {
        return moe_fail(err, MOE_ERR_INTERNAL, "every expert slot is pinned between two waves");
    }
    count_verified(store);
    store->wave_ns = moe_now_ns();
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_layer_access *access = &store->wave[i];
        store->delivered[i] = false;
        if (access->hit) {
            adopt_prefetch(store, access);
            moe_mover_raise(store->mover, access->slot, MOE_CAUSE_DEMAND);
        } else {
            access->evicted = moe_store_clear_slot(store, access->slot, access->evicted);
            (void)submit_demand(store, access); /* or submit_postponed() does, once a host slot is
                                                 * free */
        }
    }
    return MOE_OK;
}

int moe_expert_store_begin(moe_expert_store *store, const moe_layer_request *request,
                           moe_error *err)
{
    MOE_ASSERT(store->request.n == 0 && store->n_wave == 0); /* the last layer has ended */
    MOE_ASSERT(request->n <= store->options.map->n_expert);
    moe_store_stop_warming(store);
    moe_store_settle_prefetches(store);
    cancel_unwanted(store, request);
    store->request = *request;
    store->n_wave = store->n_delivered = 0;
    for (uint32_t i = 0; i < request->n; i++) {
        store->keys[i] = moe_store_key(store, request->layer, request->experts[i]);
        store->accesses[i] =
            (moe_policy_access){.pass = request->pass,
                                .layer = request->layer,
                                .n_rows = request->n_rows[i],
                                .gate = request->gates != NULL ? request->gates[i] : 0.0f};
        store->handled[i] = false;
    }
    if (request->reach != NULL) {
        moe_store_note_in_place(store);
    } else {
        moe_store_choose_host(store);
    }
    int status = begin_wave(store, err);
    moe_store_unprotect(store, request->layer);
    if (status != MOE_OK) {
        moe_expert_store_host_done(store, request->pass);
        end_layer(store);
    }
    return status;
}

/* Ends the layer after a failed read. */
static int fail_layer(moe_expert_store *store, uint32_t failed, moe_error *err)
{
    moe_error reason;
    uint32_t slot;
    int status = moe_mover_last_error(store->mover, &slot, &reason);
    /* Several may have failed; the message names the one that the reason is about. */
    for (uint32_t i = 0; i < store->n_wave; i++) {
        failed = store->wave[i].slot == slot ? i : failed;
    }
    uint32_t expert = store->request.experts[store->wave[failed].position];
    moe_fail(err, status, "layer %u, expert %u: %.440s", store->request.layer, expert,
             reason.message);
    moe_expert_store_abandon(store);
    return status;
}

void moe_expert_store_abandon(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave; i++) {
        uint32_t slot = store->wave[i].slot;
        uint32_t key = store->keys[store->wave[i].position];
        moe_slot_state state = moe_mover_state(store->mover, slot);
        bool begun = state == MOE_SLOT_LOADING || state == MOE_SLOT_COPYING;
        if (begun || (!moe_store_is_settled(state) && state != MOE_SLOT_ABSENT &&
                      !moe_mover_cancel(store->mover, slot))) {
            MOE_ASSERT(store->n_prefetching < store->arena.n_slots);
            store->prefetching[store->n_prefetching++] = slot; /* the list takes the pin over */
            continue;
        }
        moe_store_settle_host(store, slot);
        moe_expert_cache_unpin(store->cache, key);
        if (moe_mover_state(store->mover, slot) != MOE_SLOT_READY) {
            moe_store_drop_key(store, key, slot);
        }
    }
    store->n_wave = store->n_delivered = 0;
    end_layer(store);
}

/* Collects the wave's experts that are ready and not delivered. failed: the position of one that
 * failed; waiting: the slots of those under way. */
static uint32_t collect_ready(moe_expert_store *store, uint32_t *positions, moe_expert_view *views,
                              uint32_t *n_waiting, uint32_t *failed)
{
    uint32_t n = 0;
    *n_waiting = 0;
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_layer_access *access = &store->wave[i];
        if (store->delivered[i]) {
            continue;
        }
        moe_slot_state state = moe_mover_state(store->mover, access->slot);
        MOE_ASSERT(moe_expert_cache_key_of(store->cache, access->slot) ==
                   store->keys[access->position]);
        if (moe_store_is_settled(state)) {
            moe_store_settle_host(store, access->slot);
        }
        if (state == MOE_SLOT_FAILED && access->hit) {
            /* Its prefetch failed; now the expert is needed. */
            access->hit = false;
            moe_mover_reset(store->mover, access->slot);
            (void)submit_demand(store, access);
            state = moe_mover_state(store->mover, access->slot);
        }
        if (state == MOE_SLOT_READY) {
            const uint8_t *data[MOE_EXPERT_PARTS];
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                data[p] = moe_mover_data(store->mover, access->slot, p);
            }
            store->delivered[i] = true;
            store->n_delivered++;
            MOE_ASSERT(store->n_delivered <= store->n_wave);
            positions[n] = access->position;
            moe_store_fill_view(store, store->keys[access->position], data, &views[n++]);
        } else if (state != MOE_SLOT_ABSENT) {
            *failed = state == MOE_SLOT_FAILED ? i : *failed;
            store->waiting[(*n_waiting)++] = access->slot;
        }
    }
    return n;
}

/* Submits the wave's experts for which no host slot was free when the wave began, and adds their
 * number to *n_waiting.
 */
static void submit_postponed(moe_expert_store *store, uint32_t *n_waiting)
{
    bool room = store->host != NULL;
    for (uint32_t i = 0; i < store->n_wave && room; i++) {
        const moe_layer_access *access = &store->wave[i];
        if (!store->delivered[i] &&
            moe_mover_state(store->mover, access->slot) == MOE_SLOT_ABSENT) {
            room = submit_demand(store, access);
            store->waiting[*n_waiting] = access->slot;
            *n_waiting += room;
        }
    }
}

/* Called when nothing of the wave is ready: waits until something may be. */
static int wait_for_wave(moe_expert_store *store, uint32_t n_waiting, moe_error *err)
{
    if (n_waiting == 0) {
        int status = moe_store_quiesce(store, err);
        if (status != MOE_OK) {
            return status;
        }
        submit_postponed(store, &n_waiting);
    }
    if (n_waiting == 0) {
        return moe_fail(err, MOE_ERR_INTERNAL, "every host slot is pinned while none is in use");
    }
    return moe_store_wait(store, store->waiting, n_waiting, err);
}

int moe_expert_store_next(moe_expert_store *store, uint32_t *positions, moe_expert_view *views,
                          uint32_t *n, moe_error *err)
{
    *n = 0;
    if (store->n_delivered == store->n_wave) {
        int status = begin_wave(store, err);
        if (status != MOE_OK || store->n_wave == 0) {
            end_layer(store);
            return status;
        }
    }
    uint32_t failed = UINT32_MAX;
    while (*n == 0 && failed == UINT32_MAX) {
        uint32_t n_waiting;
        *n = collect_ready(store, positions, views, &n_waiting, &failed);
        submit_postponed(store, &n_waiting);
        if (*n == 0 && failed == UINT32_MAX) {
            int status = wait_for_wave(store, n_waiting, err);
            if (status != MOE_OK) {
                moe_expert_store_abandon(store);
                return status;
            }
        }
    }
    if (failed != UINT32_MAX) {
        *n = 0;
        return fail_layer(store, failed, err);
    }
    return MOE_OK;
}

uint64_t moe_expert_store_expected_wait_ns(const moe_expert_store *store)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_slot_state state = moe_mover_state(store->mover, store->wave[i].slot);
        if (store->delivered[i]) {
            continue;
        }
        if (moe_store_is_settled(state) || state == MOE_SLOT_ABSENT) {
            return 0;
        }
        n++;
    }
    return n > 0 ? moe_mover_expected_ns(store->mover, n, store->wave_ns) : 0;
}

uint64_t moe_expert_store_read_ns(const moe_expert_store *store)
{
    return moe_mover_read_ns(store->mover);
}

void moe_expert_store_note_wait(moe_expert_store *store, uint64_t ns)
{
    store->wait_ns += ns;
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

void moe_expert_store_end_pass(moe_expert_store *store, uint64_t pass)
{
    MOE_ASSERT(store->n_wave == 0 && store->request.n == 0 && store->n_host == 0);
    moe_store_unprotect(store, MOE_ALL_LAYERS);
    moe_expert_cache_end_pass(store->cache, pass);
    if (store->host != NULL) {
        moe_host_tier_end_pass(store->host, pass);
    }
    MOE_ASSERT(moe_expert_store_is_sane(store));
}
