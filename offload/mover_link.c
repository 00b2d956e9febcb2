/* SPDX-License-Identifier: MIT */
/* The mover's second stage: copies from host memory over the link into the device's memory. */
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
    }
    if (index != MOE_MOVER_NONE) {
        moe_mover_dequeue(mover, index, MOE_STAGE_COPY);
        moe_mover_set_state(&mover->slots[index], MOE_SLOT_COPYING);
    }
    return index;
}

void moe_mover_start_copy(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    moe_copy_range ranges[MOE_EXPERT_PARTS];
    uint32_t n = 0;
    MOE_ASSERT(moe_mover_get_state(slot) == MOE_SLOT_COPYING && slot->in_memory);
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        uint64_t size = slot->move.expert->parts[p].size;
        if (size > 0) {
            ranges[n++] = (moe_copy_range){slot->move.device_buffers[p], slot->data[p], size};
        }
    }
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
