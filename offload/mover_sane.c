/* SPDX-License-Identifier: MIT */
/* Checks the state of a mover. Assertions check the queues when the mover is closed, and the whole
 * state each time its thread has nothing left to begin. */
#include "offload/mover_state.h"

/* Checks that a queue holds exactly the slots that wait for its stage with its cause, linked both
 * ways. Counts them. */
static bool queue_is_sane(const moe_mover *mover, moe_mover_stage stage, int cause, uint32_t *n)
{
    const moe_mover_queue *q = &mover->queues[stage][cause];
    moe_slot_state waiting = stage == MOE_STAGE_READ ? MOE_SLOT_QUEUED : MOE_SLOT_STAGED;
    uint32_t previous = MOE_MOVER_NONE;
    for (uint32_t i = q->first; i != MOE_MOVER_NONE; i = mover->slots[i].next) {
        if (i >= mover->n_slots || *n == mover->n_slots) {
            return false;
        }
        const moe_mover_slot *slot = &mover->slots[i];
        if (slot->previous != previous || (int)slot->move.cause != cause ||
            moe_mover_get_state(slot) != waiting) {
            return false;
        }
        previous = i;
        ++*n;
    }
    return q->first == MOE_MOVER_NONE || q->last == previous;
}

/* Checks that a slot's other fields fit its state. Fields of a slot that is being read belong to
 * the thread. */
static bool slot_is_sane(const moe_mover *mover, const moe_mover_slot *slot)
{
    switch (moe_mover_get_state(slot)) {
    case MOE_SLOT_ABSENT:
    case MOE_SLOT_LOADING:
        return true;
    case MOE_SLOT_QUEUED:
        return !slot->in_memory && slot->status == MOE_OK;
    case MOE_SLOT_STAGED:
        return mover->device != NULL && slot->in_memory && slot->status == MOE_OK;
    case MOE_SLOT_COPYING:
        return mover->device != NULL && slot->in_memory;
    case MOE_SLOT_READY:
        return slot->in_memory && slot->status == MOE_OK;
    case MOE_SLOT_FAILED:
        return slot->status != MOE_OK;
    }
    return false;
}

/* Checks that the list holds exactly the saves that wait, and that the request of a save which has
 * not ended has not overwritten its slot. */
static bool saves_are_sane(const moe_mover *mover)
{
    uint32_t n_listed = 0;
    uint32_t last = MOE_MOVER_NONE;
    for (uint32_t i = mover->saves.first; i != MOE_MOVER_NONE; i = mover->slots[i].next_save) {
        if (i >= mover->n_slots || n_listed == mover->n_slots ||
            mover->slots[i].save_state != MOE_SAVE_WAITING) {
            return false;
        }
        last = i;
        n_listed++;
    }
    uint32_t n_waiting = 0;
    for (uint32_t i = 0; i < mover->n_slots; i++) {
        const moe_mover_slot *slot = &mover->slots[i];
        moe_slot_state state = moe_mover_get_state(slot);
        bool may_save =
            mover->device != NULL && slot->move.save.expert != NULL &&
            (state == MOE_SLOT_QUEUED || state == MOE_SLOT_LOADING || state == MOE_SLOT_STAGED);
        if (moe_mover_is_saving(slot) && !may_save) {
            return false;
        }
        n_waiting += slot->save_state == MOE_SAVE_WAITING;
    }
    return n_listed == n_waiting && mover->saves.last == last;
}

bool moe_mover_queues_are_sane(const moe_mover *mover)
{
    uint32_t n_queued[MOE_STAGE_COUNT] = {0};
    uint32_t n_waiting[MOE_STAGE_COUNT] = {0};
    uint32_t n_urgent = 0;
    for (int s = 0; s < MOE_STAGE_COUNT; s++) {
        for (int cause = 0; cause < MOE_CAUSE_COUNT; cause++) {
            if (!queue_is_sane(mover, (moe_mover_stage)s, cause, &n_queued[s])) {
                return false;
            }
        }
    }
    for (uint32_t i = 0; i < mover->n_slots; i++) {
        const moe_mover_slot *slot = &mover->slots[i];
        moe_slot_state state = moe_mover_get_state(slot);
        if (!slot_is_sane(mover, slot)) {
            return false;
        }
        n_waiting[MOE_STAGE_READ] += state == MOE_SLOT_QUEUED;
        n_waiting[MOE_STAGE_COPY] += state == MOE_SLOT_STAGED;
        bool asked =
            state != MOE_SLOT_ABSENT && state != MOE_SLOT_READY && state != MOE_SLOT_FAILED;
        n_urgent += asked && slot->move.cause != MOE_CAUSE_PREFETCH;
    }
    uint64_t n_moves = 0;
    for (int cause = 0; cause < MOE_CAUSE_COUNT; cause++) {
        n_moves += mover->stats.n_moves[cause];
    }
    return saves_are_sane(mover) && n_queued[MOE_STAGE_READ] == n_waiting[MOE_STAGE_READ] &&
           n_queued[MOE_STAGE_COPY] == n_waiting[MOE_STAGE_COPY] &&
           n_urgent == atomic_load(&mover->n_urgent) &&
           n_moves + mover->stats.n_failed == atomic_load(&mover->n_finished) &&
           (mover->last_status == MOE_OK || mover->last_failed < mover->n_slots) &&
           (mover->stop || !mover->ended) && (mover->ended || !mover->hangs);
}

/* Checks that copies under way belong to different slots, in each direction. */
static bool copies_are_sane(const moe_mover *mover)
{
    if (mover->n_copies > MOE_MOVER_COPIES || mover->n_saving > MOE_MOVER_COPIES) {
        return false;
    }
    for (uint32_t i = 0; i < mover->n_saving; i++) {
        uint32_t slot = mover->saving[i].slot;
        if (slot >= mover->n_slots || mover->slots[slot].save_state != MOE_SAVE_UNDER_WAY ||
            (i > 0 && slot == mover->saving[0].slot)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < mover->n_copies; i++) {
        uint32_t slot = mover->copies[i].slot;
        if (slot >= mover->n_slots ||
            moe_mover_get_state(&mover->slots[slot]) != MOE_SLOT_COPYING) {
            return false;
        }
        for (uint32_t k = 0; k < i; k++) {
            if (mover->copies[k].slot == slot) {
                return false;
            }
        }
    }
    return true;
}

static bool part_counts_are_sane(const moe_mover_slot *slot)
{
    bool sane =
        (slot->n_parts_left > 0) != slot->awaits_save && slot->n_parts_left <= MOE_EXPERT_PARTS;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        sane = sane && slot->retried[p] <= 1 + MOE_RANGE_COPIES;
    }
    return sane;
}

bool moe_mover_is_sane(const moe_mover *mover)
{
    uint32_t n_ranges = 0;
    uint32_t n_prefetches = 0;
    uint32_t n_copies = 0;
    uint32_t n_saving = 0;
    if (mover->slots == NULL || mover->max_prefetches == 0 || mover->io_timeout_ns == 0 ||
        !moe_mover_queues_are_sane(mover) || !copies_are_sane(mover)) {
        return false;
    }
    for (uint32_t i = 0; i < mover->n_slots; i++) {
        const moe_mover_slot *slot = &mover->slots[i];
        moe_slot_state state = moe_mover_get_state(slot);
        n_copies += state == MOE_SLOT_COPYING;
        n_saving += slot->save_state == MOE_SAVE_UNDER_WAY;
        if (state == MOE_SLOT_LOADING) {
            if (!part_counts_are_sane(slot)) {
                return false;
            }
            n_ranges += slot->n_parts_left;
            n_prefetches += slot->move.cause == MOE_CAUSE_PREFETCH && !slot->awaits_save;
        }
    }
    return n_saving == mover->n_saving && n_ranges == mover->n_ranges &&
           n_prefetches == mover->n_prefetches && n_prefetches <= mover->max_prefetches &&
           n_copies == mover->n_copies;
}
