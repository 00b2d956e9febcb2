/* SPDX-License-Identifier: MIT */
/* What all parts of the mover do to requests: queue them, end them, keep their errors, and wake
 * those who wait. */
#include "offload/mover_state.h"
#include "runtime/base/clock.h"

#define NONE MOE_MOVER_NONE
/* How long closing waits for progress after a cancellation, since the user wants the program to
 * end.
 */
#define ABANDONED_NS 500000000u

void moe_mover_enqueue(moe_mover *mover, uint32_t index, moe_mover_stage stage)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(index < mover->n_slots);
    MOE_ASSERT(moe_mover_get_state(&mover->slots[index]) ==
               (stage == MOE_STAGE_READ ? MOE_SLOT_QUEUED : MOE_SLOT_STAGED));
    moe_mover_slot *slot = &mover->slots[index];
    moe_mover_queue *q = &mover->queues[stage][slot->move.cause];
    slot->next = NONE;
    slot->previous = q->last;
    if (q->last != NONE) {
        mover->slots[q->last].next = index;
    } else {
        q->first = index;
    }
    q->last = index;
}

void moe_mover_dequeue(moe_mover *mover, uint32_t index, moe_mover_stage stage)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(index < mover->n_slots);
    moe_mover_slot *slot = &mover->slots[index];
    moe_mover_queue *q = &mover->queues[stage][slot->move.cause];
    MOE_ASSERT(slot->previous == NONE ? q->first == index
                                      : mover->slots[slot->previous].next == index);
    MOE_ASSERT(slot->next == NONE ? q->last == index : mover->slots[slot->next].previous == index);
    if (slot->previous != NONE) {
        mover->slots[slot->previous].next = slot->next;
    } else {
        q->first = slot->next;
    }
    if (slot->next != NONE) {
        mover->slots[slot->next].previous = slot->previous;
    } else {
        q->last = slot->previous;
    }
}

void moe_mover_count_urgent(moe_mover *mover, const moe_mover_slot *slot)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    if (slot->move.cause != MOE_CAUSE_PREFETCH) {
        atomic_fetch_add(&mover->n_urgent, 1);
    }
}

void moe_mover_no_longer_urgent(moe_mover *mover, const moe_mover_slot *slot)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(slot->move.cause == MOE_CAUSE_PREFETCH || atomic_load(&mover->n_urgent) > 0);
    if (slot->move.cause != MOE_CAUSE_PREFETCH) {
        atomic_fetch_sub(&mover->n_urgent, 1);
    }
}

/* A failed prefetch is not an error; whoever needs the expert requests it again. */
void moe_mover_record_error(moe_mover *mover, uint32_t index, const moe_error *error)
{
    MOE_ASSERT(index < mover->n_slots && mover->slots[index].status != MOE_OK);
    if (mover->slots[index].move.cause == MOE_CAUSE_PREFETCH) {
        return;
    }
    pthread_mutex_lock(&mover->lock);
    mover->last_status = mover->slots[index].status;
    mover->last_failed = index;
    mover->last_error = *error;
    pthread_mutex_unlock(&mover->lock);
}

void moe_mover_finish(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    uint64_t bytes = moe_expert_ref_bytes(slot->move.expert);
    MOE_ASSERT(slot->status != MOE_OK || slot->in_memory);
    pthread_mutex_lock(&mover->lock);
    if (slot->status == MOE_OK) {
        mover->stats.n_moves[slot->move.cause]++;
        mover->stats.bytes[slot->move.cause] += bytes;
        mover->stats.bytes_link += mover->device != NULL ? bytes : 0;
    } else {
        mover->stats.n_failed++;
    }
    moe_mover_no_longer_urgent(mover, slot);
    moe_mover_note_progress(mover);
    moe_mover_set_state(slot, slot->status == MOE_OK ? MOE_SLOT_READY : MOE_SLOT_FAILED);
    atomic_fetch_add_explicit(&mover->n_finished, 1, memory_order_release);
    pthread_cond_broadcast(&mover->finished);
    pthread_mutex_unlock(&mover->lock);
}

void moe_mover_wake(moe_mover *mover)
{
    pthread_cond_signal(&mover->requested);
    moe_range_reader_wake(mover->reader);
}

void moe_mover_note_progress(moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    mover->last_progress_ns = moe_now_ns();
    mover->stalled = mover->abandoned = false;
}

void moe_mover_wait_until(moe_mover *mover, pthread_cond_t *condition, uint64_t deadline_ns)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                .tv_nsec = (long)(deadline_ns % 1000000000u)};
    (void)pthread_cond_timedwait(condition, &mover->lock, &deadline);
}

uint64_t moe_mover_closing_patience(const moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    uint64_t patience =
        mover->stalled ? mover->io_timeout_ns / MOE_MOVER_STALLED_DIVISOR : mover->io_timeout_ns;
    return mover->abandoned && patience > ABANDONED_NS ? ABANDONED_NS : patience;
}

void moe_mover_leave_link(moe_mover *mover)
{
    if (mover->device != NULL) {
        mover->device->link->copy_notify(mover->device, NULL, NULL);
    }
}
