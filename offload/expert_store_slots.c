/* SPDX-License-Identifier: MIT */
/* Changes the records of the device's slots (slot_record.h lists the changes) and their holds. Each
 * change keeps the record, the cache, the mover and the host tier consistent, so that no other file
 * has to. The last functions wait for slots, and describe what is in a slot. */
#include <stdio.h>
#include <stdlib.h>

#include "cache/tier_saves.h"
#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

int moe_store_init_slots(moe_expert_store *store, moe_error *err)
{
    uint32_t n = store->arena.n_slots;
    store->slots = moe_calloc(n, sizeof *store->slots);
    if (store->slots == NULL || !moe_key_list_init(&store->ahead, n, 1) ||
        !moe_key_list_init(&store->foreseen, n, 1)) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    for (uint32_t slot = 0; slot < n; slot++) {
        store->slots[slot].saved_key = MOE_KEY_NONE;
    }
    return MOE_OK;
}

void moe_store_free_slots(moe_expert_store *store)
{
    free(store->slots);
    moe_key_list_release(&store->ahead);
    moe_key_list_release(&store->foreseen);
}

/* ---- The record ---- */

static const char *name_of(moe_slot_use use)
{
    static const char *const names[MOE_USE_COUNT] = {"empty",  "given", "moving", "resident",
                                                     "closed", "lent",  "retired"};
    return names[use];
}

/* Removes the slot from the hold's list, and the hold from the slot. The pin stays. */
static void leave_list(moe_expert_store *store, uint32_t slot, moe_slot_hold hold)
{
    store->slots[slot].holds &= (uint8_t)~hold;
    if (hold == MOE_HOLD_AHEAD) {
        moe_key_list_remove(&store->ahead, slot);
        store->n_ahead--;
    } else if (hold == MOE_HOLD_FORESEEN) {
        moe_key_list_remove(&store->foreseen, slot);
        store->n_foreseen--;
    }
}

/* Removes the slot's expert and its pins from the cache. */
static void lose_expert(moe_expert_store *store, uint32_t slot)
{
    for (int hold = MOE_HOLD_WAVE; hold <= MOE_HOLD_KEPT; hold <<= 1) {
        if (moe_store_is_held(store, slot, (moe_slot_hold)hold)) {
            leave_list(store, slot, (moe_slot_hold)hold);
        }
    }
    moe_expert_cache_drop(store->cache, moe_expert_cache_key_of(store->cache, slot));
}

/* Takes a slot out of use for good. Experts that its request holds in the host tier stay held,
 * because the request may still use them. */
static void retire(moe_expert_store *store, uint32_t slot, const char *what)
{
    moe_slot_record *record = &store->slots[slot];
    (void)moe_fail(
        &store->fault, MOE_ERR_INTERNAL,
        "slot %u of the expert cache is %s and %s; it is out of use now. This is a fault "
        "of the library: please report it",
        slot, name_of((moe_slot_use)record->use), what);
    lose_expert(store, slot);
    moe_expert_cache_withdraw(store->cache, slot);
    store->n_saving -= record->saved_key != MOE_KEY_NONE;
    record->saved_key = MOE_KEY_NONE;
    record->use = MOE_USE_RETIRED;
    store->n_retired++;
    store->n_changes++;
}

#define FROM(use) (1u << (use))

/* The only function that writes a slot's use. If the use is not among `from`, it retires the slot
 * and returns false. */
static bool change_use(moe_expert_store *store, uint32_t slot, unsigned from, moe_slot_use to)
{
    moe_slot_use use = moe_store_use(store, slot);
    if (use == MOE_USE_RETIRED) {
        return false;
    }
    MOE_ASSERT((from & FROM(use)) != 0);
    if ((from & FROM(use)) == 0) {
        char what[64];
        (void)snprintf(what, sizeof what, "was to become %s", name_of(to));
        retire(store, slot, what);
        return false;
    }
    store->slots[slot].use = (uint8_t)to;
    store->n_changes += use == MOE_USE_RESIDENT || to == MOE_USE_RESIDENT;
    return true;
}

int moe_store_check(moe_expert_store *store, moe_error *err)
{
    if (store->host != NULL && moe_host_tier_take_fault(store->host)) {
        (void)moe_fail(&store->fault, MOE_ERR_INTERNAL,
                       "a slot of the host tier went a way that it must not go; it is out of use "
                       "now. This is a fault of the library: please report it");
    }
    if (store->fault.message[0] == '\0') {
        return MOE_OK;
    }
    int status = moe_fail(err, MOE_ERR_INTERNAL, "%s", store->fault.message);
    store->fault.message[0] = '\0';
    return status;
}

/* ---- Holds ---- */

void moe_store_join_wave(moe_expert_store *store, uint32_t slot)
{
    if (moe_store_use(store, slot) == MOE_USE_RETIRED) {
        return;
    }
    MOE_ASSERT(!moe_store_is_held(store, slot, MOE_HOLD_WAVE));
    store->slots[slot].holds |= MOE_HOLD_WAVE;
}

void moe_store_hold(moe_expert_store *store, uint32_t slot, moe_slot_hold hold)
{
    if (moe_store_use(store, slot) == MOE_USE_RETIRED) {
        return;
    }
    uint32_t key = moe_expert_cache_key_of(store->cache, slot);
    bool may_hold = key != MOE_KEY_NONE && !moe_store_is_held(store, slot, hold);
    MOE_ASSERT(may_hold);
    if (!may_hold) {
        retire(store, slot, "was to be held without an expert, or twice");
        return;
    }
    store->slots[slot].holds |= (uint8_t)hold;
    if (hold == MOE_HOLD_AHEAD) {
        moe_key_list_push_front(&store->ahead, 0, slot);
        store->n_ahead++;
    } else if (hold == MOE_HOLD_FORESEEN) {
        moe_key_list_push_front(&store->foreseen, 0, slot);
        store->n_foreseen++;
    }
    moe_expert_cache_pin(store->cache, key);
}

void moe_store_release(moe_expert_store *store, uint32_t slot, moe_slot_hold hold)
{
    if (moe_store_use(store, slot) == MOE_USE_RETIRED) {
        return;
    }
    MOE_ASSERT(moe_store_is_held(store, slot, hold));
    if (!moe_store_is_held(store, slot, hold)) {
        retire(store, slot, "was to be released by one that does not hold it");
        return;
    }
    leave_list(store, slot, hold);
    moe_expert_cache_unpin(store->cache, moe_expert_cache_key_of(store->cache, slot));
}

/* ---- Changes of use ---- */

uint32_t moe_store_give(moe_expert_store *store, uint32_t slot, uint32_t evicted)
{
    bool there = moe_store_use(store, slot) == MOE_USE_RESIDENT;
    if (!change_use(store, slot, FROM(MOE_USE_EMPTY) | FROM(MOE_USE_RESIDENT), MOE_USE_GIVEN)) {
        return MOE_KEY_NONE;
    }
    store->slots[slot].brought_pass = 0;
    if (there) {
        moe_mover_reset(store->mover, slot);
    }
    return there ? evicted : MOE_KEY_NONE;
}

/* Makes the move save the slot's old expert to host memory first, if there is a place for it. So
 * memory tends to hold each expert once: host slots go to experts that the device has lost, and the
 * host slot of an expert that the device still holds is freed first (moe_expert_cache_stack()). A
 * save costs nothing while its request is read from the disk. But if the new expert's bytes are in
 * host memory already, the request waits for the save's copy over the link, so the save must be
 * worth it. */
static void save_evicted(moe_expert_store *store, uint32_t slot, uint32_t evicted,
                         const moe_policy_access *access, moe_move *move)
{
    const moe_tensor_map *map = store->options.map;
    uint32_t layer = evicted / map->n_expert;
    moe_policy_access saved = {.pass = access->pass, .layer = layer};
    if (evicted == MOE_KEY_NONE || store->options.keep_nothing ||
        moe_expert_cache_find(store->cache, evicted) != MOE_SLOT_NONE ||
        store->n_saving >= moe_host_tier_slots_of(store->host, layer) / MOE_SAVING_DIVISOR ||
        (move->in_memory && !moe_host_tier_save_pays(store->host)) ||
        !moe_host_tier_take_saved(store->host, evicted, &saved, move->save.buffers)) {
        return;
    }
    move->save.expert = &map->layers[layer].experts[evicted % map->n_expert];
    store->slots[slot].saved_key = evicted;
    store->n_saving++;
}

bool moe_store_submit(moe_expert_store *store, uint32_t slot, uint32_t evicted,
                      const moe_policy_access *access, moe_move_cause cause)
{
    uint32_t key = moe_expert_cache_key_of(store->cache, slot);
    if (moe_store_use(store, slot) == MOE_USE_RETIRED) {
        return false;
    }
    const moe_tensor_map *map = store->options.map;
    moe_move move = {.expert = &map->layers[key / map->n_expert].experts[key % map->n_expert],
                     .cause = cause};
    if (store->host != NULL &&
        !moe_host_tier_take(store->host, key, access, cause == MOE_CAUSE_PREFETCH, &move)) {
        return false;
    }
    if (!change_use(store, slot, FROM(MOE_USE_GIVEN), MOE_USE_MOVING)) {
        return false;
    }
    if (store->host != NULL) {
        save_evicted(store, slot, evicted, access, &move);
    }
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        uint8_t *buffer = moe_slot_arena_buffer(&store->arena, slot, p);
        if (store->host != NULL) {
            move.device_buffers[p] = buffer;
        } else {
            move.buffers[p] = buffer;
        }
    }
    if (!moe_store_reads_all(store)) {
        moe_slot_pages_taken(store->pages, slot);
    } else if (cause == MOE_CAUSE_DEMAND) { /* for other causes, the mover tells when they begin */
        moe_slot_pages_hurry(store->pages, slot);
    }
    move.sums = store->options.sums;
    move.first_sum = moe_weight_sum_of_expert(key, 0);
    store->n_asked[cause]++;
    moe_mover_submit(store->mover, slot, &move);
    return true;
}

/* Releases what a request held in the host tier, after the request has ended. */
static void settle_host(moe_expert_store *store, uint32_t slot)
{
    moe_slot_record *record = &store->slots[slot];
    if (store->host == NULL) {
        return;
    }
    const uint8_t *data[MOE_EXPERT_PARTS];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        data[p] = moe_mover_host_data(store->mover, slot, p);
    }
    store->n_settled++;
    moe_host_tier_settle(store->host, moe_expert_cache_key_of(store->cache, slot), data);
    if (record->saved_key != MOE_KEY_NONE) {
        MOE_ASSERT(store->n_saving > 0);
        moe_host_tier_settle_saved(store->host, record->saved_key,
                                   moe_mover_has_saved(store->mover, slot));
        record->saved_key = MOE_KEY_NONE;
        store->n_saving--;
    }
}

moe_slot_outcome moe_store_settle(moe_expert_store *store, uint32_t slot)
{
    if (moe_store_use(store, slot) != MOE_USE_MOVING) {
        return MOE_OUTCOME_NONE;
    }
    /* The only look at the state, which may change. */
    moe_slot_state state = moe_mover_state(store->mover, slot);
    if (!moe_mover_is_end(state)) {
        return MOE_OUTCOME_MOVING;
    }
    if (moe_mover_is_broken(store->mover, slot)) {
        retire(store, slot, "its request went a way that it must not go");
        return MOE_OUTCOME_FAILED;
    }
    settle_host(store, slot);
    if (state == MOE_SLOT_READY) {
        (void)change_use(store, slot, FROM(MOE_USE_MOVING), MOE_USE_RESIDENT);
        return MOE_OUTCOME_ARRIVED;
    }
    moe_mover_reset(store->mover, slot);
    (void)change_use(store, slot, FROM(MOE_USE_MOVING), MOE_USE_GIVEN);
    return MOE_OUTCOME_FAILED;
}

bool moe_store_cancel(moe_expert_store *store, uint32_t slot)
{
    if (moe_store_use(store, slot) != MOE_USE_MOVING || !moe_mover_cancel(store->mover, slot)) {
        return false;
    }
    settle_host(store, slot);
    return change_use(store, slot, FROM(MOE_USE_MOVING), MOE_USE_GIVEN);
}

void moe_store_adopt(moe_expert_store *store, uint32_t slot)
{
    uint8_t *buffers[MOE_EXPERT_PARTS];
    if (change_use(store, slot, FROM(MOE_USE_GIVEN), MOE_USE_RESIDENT)) {
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            buffers[p] = moe_slot_arena_buffer(&store->arena, slot, p);
        }
        moe_mover_adopt(store->mover, slot, buffers);
    }
}

void moe_store_drop(moe_expert_store *store, uint32_t slot)
{
    bool there = moe_store_use(store, slot) == MOE_USE_RESIDENT;
    if (!change_use(store, slot, FROM(MOE_USE_GIVEN) | FROM(MOE_USE_RESIDENT), MOE_USE_EMPTY)) {
        return;
    }
    if (there) {
        moe_mover_reset(store->mover, slot);
    }
    lose_expert(store, slot);
}

void moe_store_close(moe_expert_store *store, uint32_t slot, moe_slot_use use)
{
    bool there = moe_store_use(store, slot) == MOE_USE_RESIDENT;
    MOE_ASSERT(use == MOE_USE_CLOSED || use == MOE_USE_LENT);
    MOE_ASSERT(moe_expert_cache_is_closed(store->cache, slot) && store->slots[slot].holds == 0);
    if (change_use(store, slot, FROM(MOE_USE_EMPTY) | FROM(MOE_USE_RESIDENT), use) && there) {
        moe_mover_reset(store->mover, slot);
    }
}

void moe_store_reopen(moe_expert_store *store, uint32_t slot)
{
    (void)change_use(store, slot, FROM(MOE_USE_CLOSED) | FROM(MOE_USE_LENT), MOE_USE_EMPTY);
}

void moe_store_note_brought(moe_expert_store *store, uint32_t slot, uint64_t pass,
                            moe_move_cause cause)
{
    store->slots[slot].brought_pass = pass + 1;
    store->slots[slot].brought_by = cause;
}

/* ---- Waiting, and what is in a slot ---- */

int moe_store_wait(moe_expert_store *store, const uint32_t *slots, uint32_t n, moe_error *err)
{
    moe_error reason;
    uint32_t hung;
    uint64_t begin = moe_now_ns();
    int status = moe_mover_wait(store->mover, slots, n, &store->request.cancel, &hung, &reason);
    store->wait_ns += moe_now_ns() - begin;
    if (status == MOE_ERR_CANCELLED) {
        moe_fail(err, status, "%.480s", reason.message);
    } else if (status != MOE_OK) {
        uint32_t key = moe_expert_cache_key_of(store->cache, hung);
        uint32_t n_expert = store->options.map->n_expert;
        moe_fail(err, status, "layer %u, expert %u: %.440s", key / n_expert, key % n_expert,
                 reason.message);
    }
    return status;
}

void moe_store_fill_view(const moe_expert_store *store, uint32_t key, const uint8_t *const *data,
                         moe_expert_view *view)
{
    MOE_ASSERT(key < store->options.map->n_layer * store->options.map->n_expert);
    const moe_tensor_map *map = store->options.map;
    const moe_expert_ref *expert = &map->layers[key / map->n_expert].experts[key % map->n_expert];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &expert->parts[p];
        MOE_ASSERT(data[p] != NULL);
        view->parts[p] = (moe_weight){.type = ref->type,
                                      .data = data[p],
                                      .n_in = (uint32_t)ref->n_in,
                                      .n_out = (uint32_t)ref->n_out,
                                      .row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in),
                                      .scale = moe_tensor_scale_of(map, ref)};
    }
    if (expert->parts[MOE_EXPERT_GATE].size == 0) {
        view->parts[MOE_EXPERT_GATE] = view->parts[MOE_EXPERT_UP];
    }
}

void moe_store_view(const moe_expert_store *store, uint32_t slot, moe_expert_view *view)
{
    const uint8_t *data[MOE_EXPERT_PARTS];
    MOE_ASSERT(moe_store_use(store, slot) == MOE_USE_RESIDENT);
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        data[p] = moe_mover_data(store->mover, slot, p);
    }
    moe_store_fill_view(store, moe_expert_cache_key_of(store->cache, slot), data, view);
}
