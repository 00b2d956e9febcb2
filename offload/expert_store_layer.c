/* SPDX-License-Identifier: MIT */
#include "offload/expert_store.h"

#include <stdlib.h>
#include <string.h>

#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

uint64_t moe_expert_store_wait_ns(const moe_expert_store *store)
{
    return store->wait_ns;
}

uint64_t moe_expert_store_bytes_moved(const moe_expert_store *store)
{
    moe_mover_stats moves;
    moe_mover_get_stats(store->mover, &moves);
    return moves.bytes[MOE_CAUSE_DEMAND] + moves.bytes[MOE_CAUSE_VERIFY] +
           moves.bytes[MOE_CAUSE_PREFETCH];
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

/* The moe_store_wanted_fn of a layer's request. A prefetch for the request's own layer is wanted
 * only if the request names its expert. */
static bool is_wanted(const moe_expert_store *store, uint32_t key, void *user)
{
    const moe_layer_request *request = user;
    bool wanted = key / store->options.map->n_expert != request->layer;
    for (uint32_t e = 0; e < request->n && !wanted; e++) {
        wanted = moe_store_key(store, request->layer, request->experts[e]) == key;
    }
    return wanted;
}

static void end_wave(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_store_release(store, store->wave[i].slot, MOE_HOLD_WAVE);
    }
    store->n_wave = store->n_delivered = 0;
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

/* On-demand loading: drops the slot's expert if nothing holds it. */
static void keep_nothing(moe_expert_store *store, uint32_t slot)
{
    if (store->options.keep_nothing && store->slots[slot].holds == 0 &&
        moe_store_use(store, slot) == MOE_USE_RESIDENT) {
        moe_store_drop(store, slot);
    }
}

/* Keeps only experts that are resident: one that failed to arrive has no bytes to keep. */
static void update_kept(moe_expert_store *store)
{
    const moe_layer_request *request = &store->request;
    uint32_t slot;
    if (request->keep == NULL || request->n == 0) {
        return;
    }
    for (uint32_t e = 0; e < store->options.map->n_expert; e++) {
        if (!moe_store_is_resident(store, moe_store_key(store, request->layer, e), &slot)) {
            continue;
        }
        bool keep = is_named(request, e);
        bool is_kept = moe_store_is_held(store, slot, MOE_HOLD_KEPT);
        if (keep && !is_kept) {
            moe_store_hold(store, slot, MOE_HOLD_KEPT);
        } else if (!keep && is_kept) {
            moe_store_release(store, slot, MOE_HOLD_KEPT);
            keep_nothing(store, slot);
        }
    }
}

static void end_layer(moe_expert_store *store)
{
    end_wave(store);
    moe_store_settle_ahead(store);
    update_kept(store);
    for (uint32_t i = 0; i < store->request.n; i++) {
        uint32_t slot = moe_expert_cache_find(store->cache, store->keys[i]);
        if (slot != MOE_SLOT_NONE) {
            keep_nothing(store, slot);
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
    return moe_store_submit(store, access->slot, access->evicted,
                            &store->accesses[access->position], MOE_CAUSE_DEMAND);
}

static uint64_t expert_bytes(const moe_expert_store *store, uint32_t key)
{
    const moe_tensor_map *map = store->options.map;
    return moe_expert_ref_bytes(&map->layers[key / map->n_expert].experts[key % map->n_expert]);
}

/* How far the expert's read had come when the verification asked for the expert. */
static moe_verify_state state_of(const moe_expert_store *store, const moe_layer_access *access)
{
    if (!access->hit) {
        return MOE_VERIFY_MISSED;
    }
    if (store->slots[access->slot].brought_by == MOE_CAUSE_PREFETCH) {
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
        /* An expert that an earlier pass brought in was resident before the draft. */
        if (!access->hit || store->slots[access->slot].brought_pass == store->request.pass + 1) {
            store->bytes_verify[state_of(store, access)] += expert_bytes(store, key);
        }
    }
}

/* Requests the missing experts of the next wave. Returns 0 when the layer is done. */
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
        MOE_TRY(moe_store_quiesce(store, err));
        moe_store_unprotect(store, MOE_ALL_LAYERS);
        moe_store_release_kept(store);
        store->n_wave = access_wave(store);
    }
    if (store->n_wave == 0) {
        return moe_fail(err, MOE_ERR_INTERNAL, "every expert slot is pinned between two waves");
    }
    if (store->request.at_once && store->n_wave < store->request.n) {
        return moe_fail(err, MOE_ERR_INTERNAL, "%u experts do not get slots together",
                        store->request.n);
    }
    count_verified(store);
    store->wave_ns = moe_now_ns();
    for (uint32_t i = 0; i < store->n_wave; i++) {
        moe_layer_access *access = &store->wave[i];
        store->delivered[i] = false;
        if (!access->hit) {
            access->evicted = moe_store_give(store, access->slot, access->evicted);
        }
        moe_store_join_wave(store, access->slot);
        if (access->hit) {
            if (moe_store_is_held(store, access->slot, MOE_HOLD_AHEAD)) {
                moe_store_release(store, access->slot, MOE_HOLD_AHEAD);
            }
            if (moe_mover_raise(store->mover, access->slot, MOE_CAUSE_DEMAND)) {
                moe_slot_pages_hurry(store->pages, access->slot);
            }
        } else {
            /* If no host slot is free, submit_postponed() does it later. */
            (void)submit_demand(store, access);
        }
    }
    return moe_store_check(store, err);
}

int moe_expert_store_begin(moe_expert_store *store, const moe_layer_request *request,
                           moe_error *err)
{
    MOE_ASSERT(store->request.n == 0 && store->n_wave == 0); /* the previous layer has ended */
    MOE_ASSERT(request->n <= store->options.map->n_expert);
    moe_store_stop_warming(store);
    moe_store_settle_ahead(store);
    moe_store_cancel_ahead(store, is_wanted, (void *)request);
    MOE_TRY(moe_store_check(store, err));
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
    if (request->played != NULL) {
        moe_store_note_in_place(store);
    } else {
        moe_store_hold_on_host(store);
    }
    int status = begin_wave(store, err);
    moe_store_unprotect(store, request->layer);
    if (status != MOE_OK) {
        moe_expert_store_end_layer(store);
    }
    return status;
}

/* Says which expert of the wave failed, and why. */
static int tell_failed(moe_expert_store *store, uint32_t failed, moe_error *err)
{
    moe_error reason;
    uint32_t slot;
    int status = moe_mover_last_error(store->mover, &slot, &reason);
    /* Several experts may have failed; the message must name the one that the reason is about. */
    for (uint32_t i = 0; i < store->n_wave; i++) {
        failed = store->wave[i].slot == slot ? i : failed;
    }
    uint32_t expert = store->request.experts[store->wave[failed].position];
    return moe_fail(err, status, "layer %u, expert %u: %.440s", store->request.layer, expert,
                    reason.message);
}

/* Releases a slot of a wave that ends early. If its request is under way, the slot is held AHEAD.
 */
static void leave_wave(moe_expert_store *store, uint32_t slot)
{
    (void)moe_store_settle(store, slot);
    (void)moe_store_cancel(store, slot);
    switch (moe_store_use(store, slot)) {
    case MOE_USE_MOVING:
        moe_store_hold(store, slot, MOE_HOLD_AHEAD);
        moe_store_release(store, slot, MOE_HOLD_WAVE);
        break;
    case MOE_USE_GIVEN:
        moe_store_drop(store, slot);
        break;
    default:
        moe_store_release(store, slot, MOE_HOLD_WAVE);
        break;
    }
}

/* Leaves the layer. Experts that the host computes stay held. */
static void leave_layer(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_wave; i++) {
        leave_wave(store, store->wave[i].slot);
    }
    store->n_wave = store->n_delivered = 0;
    end_layer(store);
}

void moe_expert_store_end_layer(moe_expert_store *store)
{
    leave_layer(store);
    moe_store_release_on_host(store);
}

/* Collects the wave's experts that are ready and have not been handed over. failed: out, the
 * position of an expert that failed; waiting: out, the slots under way. */
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
        if (moe_store_settle(store, access->slot) == MOE_OUTCOME_FAILED) {
            *failed = access->hit ? *failed : i;
            access->hit = false; /* its prefetch failed; now it is a demand */
        }
        if (moe_store_use(store, access->slot) == MOE_USE_RESIDENT) {
            MOE_ASSERT(moe_expert_cache_key_of(store->cache, access->slot) ==
                       store->keys[access->position]);
            store->delivered[i] = true;
            store->n_delivered++;
            MOE_ASSERT(store->n_delivered <= store->n_wave);
            positions[n] = access->position;
            moe_store_view(store, access->slot, &views[n++]);
        } else if (moe_store_use(store, access->slot) == MOE_USE_MOVING) {
            store->waiting[(*n_waiting)++] = access->slot;
        }
    }
    return n;
}

/* Requests the wave's experts that have no request: no host slot was free when the wave began, or a
 * prefetch failed. Adds their number to *n_waiting. */
static void submit_postponed(moe_expert_store *store, uint32_t *n_waiting)
{
    bool room = true;
    for (uint32_t i = 0; i < store->n_wave && room; i++) {
        const moe_layer_access *access = &store->wave[i];
        if (moe_store_use(store, access->slot) == MOE_USE_GIVEN) {
            room = submit_demand(store, access);
            store->waiting[*n_waiting] = access->slot;
            *n_waiting += room;
        }
    }
}

/* Called when no expert of the wave is ready: waits until one may be. */
static int wait_for_wave(moe_expert_store *store, uint32_t n_waiting, moe_error *err)
{
    if (n_waiting == 0) {
        MOE_TRY(moe_store_quiesce(store, err));
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
    *n = store->host_is_given ? 0 : moe_store_give_on_host(store, positions, views);
    if (*n > 0) {
        return MOE_OK;
    }
    if (store->n_delivered == store->n_wave) {
        int status = begin_wave(store, err);
        if (status != MOE_OK || store->n_wave == 0) {
            leave_layer(store);
            return status;
        }
    }
    while (*n == 0) {
        uint32_t failed = UINT32_MAX;
        uint32_t n_waiting;
        *n = collect_ready(store, positions, views, &n_waiting, &failed);
        int status = moe_store_check(store, err);
        if (status == MOE_OK && failed != UINT32_MAX) {
            status = tell_failed(store, failed, err);
        }
        if (status == MOE_OK) {
            submit_postponed(store, &n_waiting);
            status = moe_store_check(store, err);
        }
        if (status == MOE_OK && *n == 0) {
            status = wait_for_wave(store, n_waiting, err);
        }
        if (status != MOE_OK) {
            *n = 0;
            leave_layer(store);
            return status;
        }
    }
    return MOE_OK;
}

uint64_t moe_expert_store_expected_wait_ns(const moe_expert_store *store)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < store->n_wave; i++) {
        uint32_t slot = store->wave[i].slot;
        if (store->delivered[i]) {
            continue;
        }
        if (moe_store_use(store, slot) != MOE_USE_MOVING ||
            moe_mover_has_ended(store->mover, slot)) {
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
        uint32_t slot =
            moe_expert_cache_find(store->cache, moe_store_key(store, layer, experts[i]));
        moe_store_view(store, slot, &views[i]);
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
