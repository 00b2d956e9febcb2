/* SPDX-License-Identifier: MIT */
/* The mover's requests. First, for all of the mover's files: their queues and how they end. Then
 * the functions for other threads. Last the waits, which detect a disk or link that hangs. */
#include "offload/mover_state.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define NONE MOE_MOVER_NONE
/* How long closing waits for progress after a cancellation: the user wants the program to end. */
#define ABANDONED_NS 500000000u
/* How often waits look for a cancellation. It may come from a signal handler, which cannot wake a
 * thread. */
#define CANCEL_LOOK_NS 20000000u

/* ---- Queues and ends ---- */

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

void moe_mover_enqueue_save(moe_mover *mover, uint32_t index)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(mover->slots[index].save_state == MOE_SAVE_NONE);
    mover->slots[index].save_state = MOE_SAVE_WAITING;
    mover->slots[index].next_save = NONE;
    if (mover->saves.last != NONE) {
        mover->slots[mover->saves.last].next_save = index;
    } else {
        mover->saves.first = index;
    }
    mover->saves.last = index;
}

void moe_mover_leave_saves(moe_mover *mover, uint32_t index)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(mover->slots[index].save_state == MOE_SAVE_WAITING);
    uint32_t before = NONE;
    for (uint32_t i = mover->saves.first; i != index; i = mover->slots[i].next_save) {
        before = i;
    }
    uint32_t next = mover->slots[index].next_save;
    if (before != NONE) {
        mover->slots[before].next_save = next;
    } else {
        mover->saves.first = next;
    }
    mover->saves.last = mover->saves.last == index ? before : mover->saves.last;
}

void moe_mover_give_up_save(moe_mover *mover, uint32_t index)
{
    if (mover->slots[index].save_state == MOE_SAVE_WAITING) {
        moe_mover_leave_saves(mover, index);
        mover->slots[index].save_state = MOE_SAVE_LOST;
        mover->stats.n_saves_lost++;
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

/* A failed prefetch is not an error: a layer that needs the expert requests it again. */
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
    MOE_ASSERT(!moe_mover_is_saving(slot));
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

/* ---- For the threads that use the mover ---- */

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
    slot->awaits_save = false;
    slot->save_state = MOE_SAVE_NONE;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        MOE_ASSERT(move->buffers[p] != NULL);
        MOE_ASSERT(mover->device == NULL || move->device_buffers[p] != NULL);
        slot->data[p] = move->buffers[p];
    }
    moe_mover_set_state(slot, move->in_memory ? MOE_SLOT_STAGED : MOE_SLOT_QUEUED);
    moe_mover_enqueue(mover, index, move->in_memory ? MOE_STAGE_COPY : MOE_STAGE_READ);
    moe_mover_count_urgent(mover, slot);
    if (move->save.expert != NULL) {
        MOE_ASSERT(mover->device != NULL);
        moe_mover_enqueue_save(mover, index);
    }
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

bool moe_mover_raise(moe_mover *mover, uint32_t index, moe_move_cause cause)
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
    return raised;
}

void moe_mover_yield_prefetches(moe_mover *mover, bool yield, moe_slot_pages *pages)
{
    pthread_mutex_lock(&mover->lock);
    mover->prefetches_yield = yield;
    mover->pages = pages;
    pthread_mutex_unlock(&mover->lock);
}

bool moe_mover_cancel(moe_mover *mover, uint32_t index)
{
    moe_mover_stage stage;
    pthread_mutex_lock(&mover->lock);
    bool cancelled =
        mover->slots[index].save_state != MOE_SAVE_UNDER_WAY && take_out(mover, index, &stage);
    if (cancelled) {
        moe_mover_give_up_save(mover, index);
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

bool moe_mover_has_ended(const moe_mover *mover, uint32_t slot)
{
    return moe_mover_is_end(moe_mover_state(mover, slot));
}

bool moe_mover_is_broken(const moe_mover *mover, uint32_t slot)
{
    MOE_ASSERT(moe_mover_has_ended(mover, slot));
    return mover->slots[slot].broken;
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

bool moe_mover_has_saved(const moe_mover *mover, uint32_t slot)
{
    MOE_ASSERT(slot < mover->n_slots && !moe_mover_is_saving(&mover->slots[slot]));
    return mover->slots[slot].save_state == MOE_SAVE_DONE;
}

void moe_mover_reset(moe_mover *mover, uint32_t slot)
{
    MOE_ASSERT(slot < mover->n_slots);
    MOE_ASSERT(moe_mover_get_state(&mover->slots[slot]) != MOE_SLOT_QUEUED &&
               moe_mover_get_state(&mover->slots[slot]) !=
                   MOE_SLOT_STAGED); /* moe_mover_cancel() says why */
    moe_mover_set_state(&mover->slots[slot], MOE_SLOT_ABSENT);
}

void moe_mover_adopt(moe_mover *mover, uint32_t slot,
                     uint8_t *const device_buffers[MOE_EXPERT_PARTS])
{
    MOE_ASSERT(slot < mover->n_slots && mover->device != NULL);
    MOE_ASSERT(moe_mover_get_state(&mover->slots[slot]) == MOE_SLOT_ABSENT);
    moe_mover_slot *s = &mover->slots[slot];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        s->move.device_buffers[p] = device_buffers[p];
    }
    s->in_memory = true;
    s->status = MOE_OK;
    moe_mover_set_state(s, MOE_SLOT_READY);
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

/* ---- Waits ---- */

static bool is_under_way(const moe_mover *mover, uint32_t slot)
{
    moe_slot_state state = moe_mover_get_state(&mover->slots[slot]);
    return state == MOE_SLOT_LOADING || state == MOE_SLOT_COPYING ||
           mover->slots[slot].save_state == MOE_SAVE_UNDER_WAY;
}

/* Finds one of these slots that the disk or link is working on. If there is none, finds any such
 * slot of the mover, because the given slots queue behind that one. */
static uint32_t find_hung(const moe_mover *mover, const uint32_t *slots, uint32_t n)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    MOE_ASSERT(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        if (is_under_way(mover, slots[i])) {
            return slots[i];
        }
    }
    for (uint32_t i = 0; i < mover->n_slots; i++) {
        if (is_under_way(mover, i)) {
            return i;
        }
    }
    return slots[0];
}

static int tell_hung(const moe_mover *mover, uint32_t slot, moe_error *err)
{
    const moe_tensor_ref *ref = &mover->slots[slot].move.expert->parts[0];
    double seconds = (double)mover->io_timeout_ns / 1e9;
    moe_slot_state state = moe_mover_get_state(&mover->slots[slot]);
    if (state == MOE_SLOT_COPYING ||
        (state != MOE_SLOT_LOADING && mover->slots[slot].save_state == MOE_SAVE_UNDER_WAY)) {
        return moe_fail(err, MOE_ERR_DEVICE,
                        "the device has not answered for %.3g s while an expert was copied %s it; "
                        "its driver may hang (look into dmesg)",
                        seconds, state == MOE_SLOT_COPYING ? "to" : "from");
    }
    return moe_fail(
        err, MOE_ERR_IO,
        "%s: the disk has not answered for %.3g s while an expert at offset %llu was "
        "read; it may hang (look into dmesg), or need a longer time-out (options.io_timeout)",
        moe_range_reader_path(mover->reader, ref->file_index), seconds,
        (unsigned long long)ref->offset);
}

static bool any_settled(const moe_mover *mover, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; MOE_ASSERTS_ARE_ON && i < n; i++) {
        MOE_ASSERT(slots[i] < mover->n_slots);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (moe_mover_has_ended(mover, slots[i])) {
            return true;
        }
    }
    return false;
}

/* How long a wait lasts without progress. After a wait has timed out, later ones are shorter, but
 * still long enough for a disk or link that works. */
static uint64_t patience(const moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    return mover->stalled ? mover->io_timeout_ns / MOE_MOVER_STALLED_DIVISOR : mover->io_timeout_ns;
}

static bool is_cancelled(const moe_wait_cancel *cancel)
{
    return cancel->is_cancelled != NULL && cancel->is_cancelled(cancel->user);
}

/* Waits until something finishes, or until it is time to look again. */
static void wait_a_while(moe_mover *mover, const moe_wait_cancel *cancel, uint64_t deadline)
{
    uint64_t look = moe_now_ns() + CANCEL_LOOK_NS;
    bool looks = cancel->is_cancelled != NULL && look < deadline;
    moe_mover_wait_until(mover, &mover->finished, looks ? look : deadline);
}

int moe_mover_wait(moe_mover *mover, const uint32_t *slots, uint32_t n,
                   const moe_wait_cancel *cancel, uint32_t *hung, moe_error *err)
{
    MOE_ASSERT(n > 0);
    if (any_settled(mover, slots, n)) {
        return MOE_OK;
    }
    int status = MOE_OK;
    uint64_t begin = moe_now_ns();
    pthread_mutex_lock(&mover->lock);
    while (status == MOE_OK && !any_settled(mover, slots, n)) {
        uint64_t last = mover->last_progress_ns > begin ? mover->last_progress_ns : begin;
        uint64_t deadline = last + patience(mover);
        if (is_cancelled(cancel)) {
            mover->abandoned = true;
            status = moe_fail(err, MOE_ERR_CANCELLED, "cancelled while an expert was on its way");
        } else if (moe_now_ns() >= deadline) {
            mover->stalled = true;
            mover->stats.n_timeouts++;
            *hung = find_hung(mover, slots, n);
            status = tell_hung(mover, *hung, err);
        } else {
            wait_a_while(mover, cancel, deadline);
        }
    }
    pthread_mutex_unlock(&mover->lock);
    return status;
}

uint64_t moe_mover_read_ns(const moe_mover *mover)
{
    return atomic_load_explicit(&mover->read_interval_ns, memory_order_relaxed);
}

uint64_t moe_mover_expected_ns(const moe_mover *mover, uint32_t n, uint64_t begin_ns)
{
    uint64_t interval = moe_mover_read_ns(mover);
    uint64_t last = atomic_load_explicit(&mover->last_read_ns, memory_order_relaxed);
    uint64_t since = moe_now_ns() - (last > begin_ns ? last : begin_ns);
    return n * interval - (since < interval ? since : interval);
}

bool moe_mover_set_away(moe_mover *mover, void *memory, size_t bytes, bool away)
{
    pthread_mutex_lock(&mover->lock);
    uint64_t deadline = moe_now_ns() + mover->io_timeout_ns;
    MOE_ASSERT(memory != NULL && mover->away.memory == NULL);
    mover->away = (moe_mover_away){.memory = memory, .bytes = bytes, .away = away};
    moe_mover_wake(mover);
    while (mover->away.memory != NULL && moe_now_ns() < deadline) {
        moe_mover_wait_until(mover, &mover->finished, deadline);
    }
    bool done = mover->away.memory == NULL && mover->away.done;
    mover->away.memory = NULL;
    pthread_mutex_unlock(&mover->lock);
    return done;
}
