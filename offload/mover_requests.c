/* SPDX-License-Identifier: MIT */
/* The mover's requests and reports: functions for every thread except the mover's own. */
#include "offload/mover.h"

#include "offload/mover_state.h"

void moe_mover_submit(moe_mover *mover, uint32_t index, const moe_move *move)
{
    MOE_ASSERT(index < mover->n_slots && move->expert != NULL && move->cause < MOE_CAUSE_COUNT);
    MOE_ASSERT(!move->in_memory || mover->device != NULL);
    moe_mover_slot *slot = &mover->slots[index];
    pthread_mutex_lock(&mover->lock);
    MOE_ASSERT(moe_mover_get_state(slot) == MOE_SLOT_ABSENT && !mover->stop);
    slot->move = *move;
    slot->status = MOE_OK;
    slot->in_memory = move->in_memory;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        MOE_ASSERT(move->buffers[p] != NULL);
        MOE_ASSERT(mover->device == NULL || move->device_buffers[p] != NULL);
        slot->data[p] = move->buffers[p];
    }
    moe_mover_set_state(slot, move->in_memory ? MOE_SLOT_STAGED : MOE_SLOT_QUEUED);
    moe_mover_enqueue(mover, index, move->in_memory ? MOE_STAGE_COPY : MOE_STAGE_READ);
    moe_mover_count_urgent(mover, slot);
    pthread_mutex_unlock(&mover->lock);
    moe_mover_wake(mover);
}

/* Takes a waiting request out of its queue. Under the lock. */
static bool take_out(moe_mover *mover, uint32_t index, moe_mover_stage *stage)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(index < mover->n_slots);
    moe_slot_state state = moe_mover_get_state(&mover->slots[index]);
    *stage = state == MOE_SLOT_STAGED ? MOE_STAGE_COPY : MOE_STAGE_READ;
    if (state != MOE_SLOT_QUEUED && state != MOE_SLOT_STAGED) {
        return false;
    }
    moe_mover_dequeue(mover, index, *stage);
    moe_mover_no_longer_urgent(mover, &mover->slots[index]);
    return true;
}

void moe_mover_raise(moe_mover *mover, uint32_t index, moe_move_cause cause)
{
    moe_mover_slot *slot = &mover->slots[index];
    moe_mover_stage stage;
    pthread_mutex_lock(&mover->lock);
    bool raised = cause < slot->move.cause && take_out(mover, index, &stage);
    if (raised) {
        slot->move.cause = cause;
        moe_mover_enqueue(mover, index, stage);
        moe_mover_count_urgent(mover, slot);
    }
    pthread_mutex_unlock(&mover->lock);
    if (raised) {
        moe_mover_wake(mover);
    }
}

bool moe_mover_cancel(moe_mover *mover, uint32_t index)
{
    moe_mover_stage stage;
    pthread_mutex_lock(&mover->lock);
    bool cancelled = take_out(mover, index, &stage);
    if (cancelled) {
        moe_mover_set_state(&mover->slots[index], MOE_SLOT_ABSENT);
        mover->stats.n_cancelled += mover->slots[index].move.cause != MOE_CAUSE_DEMAND;
    }
    pthread_mutex_unlock(&mover->lock);
    return cancelled;
}

moe_slot_state moe_mover_state(const moe_mover *mover, uint32_t slot)
{
    MOE_ASSERT(slot < mover->n_slots);
    return moe_mover_get_state(&mover->slots[slot]);
}

uint64_t moe_mover_n_finished(const moe_mover *mover)
{
    return atomic_load_explicit(&mover->n_finished, memory_order_acquire);
}

const uint8_t *moe_mover_data(const moe_mover *mover, uint32_t slot, int part)
{
    MOE_ASSERT(slot < mover->n_slots && part >= 0 && part < MOE_EXPERT_PARTS);
    MOE_ASSERT(moe_mover_get_state(&mover->slots[slot]) == MOE_SLOT_READY);
    const moe_mover_slot *s = &mover->slots[slot];
    return mover->device != NULL ? s->move.device_buffers[part] : s->data[part];
}

const uint8_t *moe_mover_host_data(const moe_mover *mover, uint32_t slot, int part)
{
    MOE_ASSERT(slot < mover->n_slots && part >= 0 && part < MOE_EXPERT_PARTS);
    const moe_mover_slot *s = &mover->slots[slot];
    return s->in_memory ? s->data[part] : NULL;
}

void moe_mover_reset(moe_mover *mover, uint32_t slot)
{
    MOE_ASSERT(slot < mover->n_slots);
    MOE_ASSERT(moe_mover_get_state(&mover->slots[slot]) != MOE_SLOT_QUEUED &&
               moe_mover_get_state(&mover->slots[slot]) !=
                   MOE_SLOT_STAGED); /* see moe_mover_cancel() */
    moe_mover_set_state(&mover->slots[slot], MOE_SLOT_ABSENT);
}

int moe_mover_last_error(moe_mover *mover, uint32_t *slot, moe_error *err)
{
    pthread_mutex_lock(&mover->lock);
    int status = mover->last_status;
    *slot = mover->last_failed;
    *err = mover->last_error;
    pthread_mutex_unlock(&mover->lock);
    return status;
}

void moe_mover_abandon(moe_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    mover->abandoned = true;
    pthread_mutex_unlock(&mover->lock);
}

bool moe_mover_is_idle(const moe_mover *mover)
{
    return atomic_load(&mover->n_urgent) == 0;
}

void moe_mover_get_stats(moe_mover *mover, moe_mover_stats *stats)
{
    pthread_mutex_lock(&mover->lock);
    *stats = mover->stats;
    pthread_mutex_unlock(&mover->lock);
}

void moe_mover_describe(const moe_mover *mover, char *out, size_t size)
{
    moe_range_reader_describe(mover->reader, out, size);
}
