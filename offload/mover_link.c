/* SPDX-License-Identifier: MIT */
/* The mover's second stage: copies from host memory over the link to the device. Also the way back,
 * by which experts that lose their device slots are saved:
 *
 *    WAITING --take_save()--> UNDER_WAY --take_done_save()--> DONE or LOST
 *
 * The two directions of the link do not slow each other down. So a save delays its request only if
 * the request's bytes are in host memory before the save is complete. Saves that delay a request go
 * first. */
#include "offload/mover_state.h"
#include "runtime/base/clock.h"

/* Weight of the newest copy in the moving average of the link's speed. */
#define NEWEST_WEIGHT 0.125

static void measure(moe_mover *mover, const moe_mover_copy *copy)
{
    MOE_ASSERT(copy->begin_ns != 0 && copy->slot < mover->n_slots);
    uint64_t now = moe_now_ns();
    uint64_t begin = copy->begin_ns > mover->last_copy_ns ? copy->begin_ns : mover->last_copy_ns;
    uint64_t bytes = moe_expert_ref_bytes(mover->slots[copy->slot].move.expert);
    double ns_per_byte = (double)(now - begin) / (double)bytes;
    double *average = &mover->stats.link_ns_per_byte;
    *average = *average == 0.0 ? ns_per_byte : *average + NEWEST_WEIGHT * (ns_per_byte - *average);
    mover->last_copy_ns = now;
}

uint32_t moe_mover_take_done_copy(moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    if (mover->n_copies == 0) {
        return MOE_MOVER_NONE;
    }
    moe_mover_copy copy = mover->copies[0];
    int state = mover->device->link->copy_state(mover->device, copy.ticket);
    if (state == MOE_COPY_UNDER_WAY) {
        return MOE_MOVER_NONE;
    }
    MOE_ASSERT(moe_mover_get_state(&mover->slots[copy.slot]) == MOE_SLOT_COPYING);
    mover->slots[copy.slot].status = state;
    if (state != MOE_OK && mover->slots[copy.slot].move.cause != MOE_CAUSE_PREFETCH) {
        (void)mover->device->link->copy_wait(mover->device, copy.ticket, &mover->last_error);
        mover->last_status = state;
        mover->last_failed = copy.slot;
    }
    measure(mover, &copy);
    mover->n_copies--;
    for (uint32_t i = 0; i < mover->n_copies; i++) {
        mover->copies[i] = mover->copies[i + 1];
    }
    return copy.slot;
}

uint32_t moe_mover_take_staged(moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(mover->n_copies <= MOE_MOVER_COPIES);
    uint32_t index = MOE_MOVER_NONE;
    if (mover->n_copies == MOE_MOVER_COPIES) {
        return index;
    }
    for (int cause = 0; cause < MOE_CAUSE_COUNT && index == MOE_MOVER_NONE; cause++) {
        index = mover->queues[MOE_STAGE_COPY][cause].first;
        while (index != MOE_MOVER_NONE && moe_mover_is_saving(&mover->slots[index])) {
            index = mover->slots[index].next;
        }
    }
    if (index != MOE_MOVER_NONE) {
        moe_mover_dequeue(mover, index, MOE_STAGE_COPY);
        moe_mover_set_state(&mover->slots[index], MOE_SLOT_COPYING);
    }
    return index;
}

/* Lists the copies of an expert's parts. */
static uint32_t list_ranges(const moe_expert_ref *expert, uint8_t *const *dst,
                            const uint8_t *const *src, moe_copy_range *ranges)
{
    uint32_t n = 0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        if (expert->parts[p].size > 0) {
            ranges[n++] = (moe_copy_range){dst[p], src[p], expert->parts[p].size};
        }
    }
    return n;
}

void moe_mover_start_copy(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    moe_copy_range ranges[MOE_EXPERT_PARTS];
    MOE_ASSERT(moe_mover_get_state(slot) == MOE_SLOT_COPYING && slot->in_memory);
    uint32_t n = list_ranges(slot->move.expert, slot->move.device_buffers, slot->data, ranges);
    moe_mover_copy copy = {.begin_ns = moe_now_ns(), .slot = index};
    moe_error error = {""};
    slot->status = mover->device->link->copy_begin(mover->device, ranges, n, &copy.ticket, &error);
    if (slot->status != MOE_OK) {
        moe_mover_record_error(mover, index, &error);
        moe_mover_finish(mover, index);
        return;
    }
    MOE_ASSERT(mover->n_copies < MOE_MOVER_COPIES);
    mover->copies[mover->n_copies++] = copy;
}

/* ---- Saves ---- */

bool moe_mover_take_done_save(moe_mover *mover, uint32_t *index)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    if (mover->n_saving == 0) {
        return false;
    }
    moe_mover_slot *slot = &mover->slots[mover->saving[0].slot];
    int state = mover->device->link->save_state(mover->device, mover->saving[0].ticket);
    if (state == MOE_COPY_UNDER_WAY) {
        return false;
    }
    MOE_ASSERT(slot->save_state == MOE_SAVE_UNDER_WAY);
    slot->save_state = state == MOE_OK ? MOE_SAVE_DONE : MOE_SAVE_LOST;
    mover->stats.n_saves_lost += state != MOE_OK;
    if (state == MOE_OK) {
        mover->stats.n_saves++;
        mover->stats.bytes_saved += moe_expert_ref_bytes(slot->move.save.expert);
    }
    moe_mover_note_progress(mover);
    *index = slot->awaits_save ? mover->saving[0].slot : MOE_MOVER_NONE;
    mover->n_saving--;
    for (uint32_t i = 0; i < mover->n_saving; i++) {
        mover->saving[i] = mover->saving[i + 1];
    }
    return true;
}

uint32_t moe_mover_take_save(moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(mover->n_saving <= MOE_MOVER_COPIES);
    if (mover->n_saving == MOE_MOVER_COPIES || mover->saves.first == MOE_MOVER_NONE) {
        return MOE_MOVER_NONE;
    }
    uint32_t index = mover->saves.first;
    while (index != MOE_MOVER_NONE &&
           moe_mover_get_state(&mover->slots[index]) != MOE_SLOT_STAGED) {
        index = mover->slots[index].next_save;
    }
    index = index != MOE_MOVER_NONE ? index : mover->saves.first;
    moe_mover_leave_saves(mover, index);
    mover->slots[index].save_state = MOE_SAVE_UNDER_WAY;
    return index;
}

void moe_mover_start_save(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    const moe_save *save = &slot->move.save;
    moe_copy_range ranges[MOE_EXPERT_PARTS];
    uint32_t n = list_ranges(save->expert, save->buffers,
                             (const uint8_t *const *)slot->move.device_buffers, ranges);
    moe_mover_copy copy = {.begin_ns = moe_now_ns(), .slot = index};
    moe_error error;
    int status = mover->device->link->save_begin(mover->device, ranges, n, &copy.ticket, &error);
    pthread_mutex_lock(&mover->lock);
    if (status == MOE_OK) {
        mover->saving[mover->n_saving++] = copy;
    } else {
        slot->save_state = MOE_SAVE_LOST;
        mover->stats.n_saves_lost++;
    }
    pthread_mutex_unlock(&mover->lock);
}
