/* SPDX-License-Identifier: MIT */
#include "offload/mover.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "offload/mover_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define NONE                 MOE_MOVER_NONE
#define MAX_DONE             64u
#define MAX_RANGES_IN_FLIGHT 192u /* below the reader's own limit */
#define LOOKS_PER_TIMEOUT    8u

void moe_mover_enqueue(moe_mover *mover, uint32_t index, moe_mover_stage stage)
{
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
    moe_mover_slot *slot = &mover->slots[index];
    moe_mover_queue *q = &mover->queues[stage][slot->move.cause];
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

static void count_urgent(moe_mover *mover, const moe_mover_slot *slot)
{
    if (slot->move.cause != MOE_CAUSE_PREFETCH) {
        atomic_fetch_add(&mover->n_urgent, 1);
    }
}

static void no_longer_urgent(moe_mover *mover, const moe_mover_slot *slot)
{
    if (slot->move.cause != MOE_CAUSE_PREFETCH) {
        atomic_fetch_sub(&mover->n_urgent, 1);
    }
}

/* The most urgent request that may be handed to the disk now, LOADING; NONE when there is none. */
static uint32_t take_request(moe_mover *mover)
{
    uint32_t index = NONE;
    if (mover->n_ranges + MOE_EXPERT_PARTS > MAX_RANGES_IN_FLIGHT) {
        return NONE;
    }
    for (int cause = 0; cause < MOE_CAUSE_COUNT && index == NONE; cause++) {
        if (cause != MOE_CAUSE_PREFETCH || mover->n_prefetches < mover->max_prefetches) {
            index = mover->queues[MOE_STAGE_READ][cause].first;
        }
    }
    if (index != NONE) {
        moe_mover_dequeue(mover, index, MOE_STAGE_READ);
        moe_mover_set_state(&mover->slots[index], MOE_SLOT_LOADING);
    }
    return index;
}

/* A failed prefetch is nobody's error: who needs the expert asks again. */
void moe_mover_record_error(moe_mover *mover, uint32_t index, const moe_error *error)
{
    if (mover->slots[index].move.cause == MOE_CAUSE_PREFETCH) {
        return;
    }
    pthread_mutex_lock(&mover->lock);
    mover->last_status = mover->slots[index].status;
    mover->last_failed = index;
    mover->last_error = *error;
    pthread_mutex_unlock(&mover->lock);
}

static void submit_part(moe_mover *mover, uint32_t index, int part)
{
    moe_mover_slot *slot = &mover->slots[index];
    const moe_tensor_ref *ref = &slot->move.expert->parts[part];
    moe_range range = {.file = ref->file_index,
                       .offset = ref->offset,
                       .size = ref->size,
                       .buffer = slot->move.buffers[part],
                       .tag = (uint64_t)index * MOE_EXPERT_PARTS + (uint64_t)part};
    /* The reader's limit is above ours, so there is always room. */
    if (moe_range_reader_submit(mover->reader, &range)) {
        mover->n_ranges++;
        slot->n_parts_left++;
    } else {
        moe_error error;
        slot->status = moe_fail(&error, MOE_ERR_INTERNAL, "the range reader is full");
        moe_mover_record_error(mover, index, &error);
    }
}

void moe_mover_finish(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    uint64_t bytes = moe_expert_ref_bytes(slot->move.expert);
    pthread_mutex_lock(&mover->lock);
    if (slot->status == MOE_OK) {
        mover->stats.n_moves[slot->move.cause]++;
        mover->stats.bytes[slot->move.cause] += bytes;
        mover->stats.bytes_link += mover->device != NULL ? bytes : 0;
    } else {
        mover->stats.n_failed++;
    }
    no_longer_urgent(mover, slot);
    moe_mover_note_progress(mover);
    moe_mover_set_state(slot, slot->status == MOE_OK ? MOE_SLOT_READY : MOE_SLOT_FAILED);
    atomic_fetch_add_explicit(&mover->n_finished, 1, memory_order_release);
    pthread_cond_broadcast(&mover->finished);
    pthread_mutex_unlock(&mover->lock);
}

/* All parts have been read, or given up: the first stage is over. */
static void finish_reading(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    moe_range_reader_stats reads;
    moe_range_reader_get_stats(mover->reader, &reads);
    bool staged = slot->status == MOE_OK && mover->device != NULL;
    slot->in_memory = slot->status == MOE_OK;
    pthread_mutex_lock(&mover->lock);
    mover->stats.bytes_read = reads.bytes_read;
    mover->stats.n_retries = reads.n_retries;
    mover->n_prefetches -= slot->move.cause == MOE_CAUSE_PREFETCH;
    if (slot->in_memory) {
        mover->stats.bytes_disk[slot->move.cause] += moe_expert_ref_bytes(slot->move.expert);
    }
    if (staged) {
        moe_mover_set_state(slot, MOE_SLOT_STAGED);
        moe_mover_enqueue(mover, index, MOE_STAGE_COPY);
    }
    pthread_mutex_unlock(&mover->lock);
    if (!staged) {
        moe_mover_finish(mover, index);
    }
}

static void start_slot(moe_mover *mover, uint32_t index)
{
    moe_mover_slot *slot = &mover->slots[index];
    slot->status = MOE_OK;
    slot->retried = 0;
    slot->n_parts_left = 0;
    mover->n_prefetches += slot->move.cause == MOE_CAUSE_PREFETCH;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        submit_part(mover, index, p);
    }
    if (slot->n_parts_left == 0) {
        finish_reading(mover, index);
    }
}

/* False when the part's bytes are not those that the checksum was taken of: they are read once
 * more, and then given up. */
static bool verify_part(moe_mover *mover, uint32_t index, int part)
{
    moe_mover_slot *slot = &mover->slots[index];
    const moe_tensor_ref *ref = &slot->move.expert->parts[part];
    if (slot->move.checksums == NULL ||
        XXH3_64bits(slot->data[part], ref->size) == slot->move.checksums[part]) {
        return true;
    }
    if ((slot->retried & 1u << part) == 0) {
        slot->retried |= (uint8_t)(1u << part);
        pthread_mutex_lock(&mover->lock);
        mover->stats.n_checksum_retries++;
        pthread_mutex_unlock(&mover->lock);
        submit_part(mover, index, part);
        return false;
    }
    moe_error error;
    slot->status = moe_fail(&error, MOE_ERR_IO,
                            "%s: the expert's bytes at offset %llu do not match their checksum, "
                            "twice; the file or the disk is damaged: download the file again",
                            moe_range_reader_path(mover->reader, ref->file_index),
                            (unsigned long long)ref->offset);
    moe_mover_record_error(mover, index, &error);
    return false;
}

static void process_done(moe_mover *mover, const moe_range_done *done)
{
    uint32_t index = (uint32_t)(done->tag / MOE_EXPERT_PARTS);
    int part = (int)(done->tag % MOE_EXPERT_PARTS);
    moe_mover_slot *slot = &mover->slots[index];
    mover->n_ranges--;
    slot->n_parts_left--;
    if (done->status != MOE_OK) {
        slot->status = done->status;
        moe_mover_record_error(mover, index, &done->error);
    } else {
        slot->data[part] = done->data;
        (void)verify_part(mover, index, part);
    }
    if (slot->n_parts_left == 0) {
        finish_reading(mover, index);
    }
}

/* Hands requests to the link and to the reader; sleeps when the reader has nothing to wait for.
 * False to stop. */
static bool take_requests(moe_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    for (;;) {
        void (*act)(moe_mover *, uint32_t) = moe_mover_finish;
        uint32_t index = moe_mover_take_done_copy(mover);
        if (index == NONE) {
            act = moe_mover_start_copy;
            index = moe_mover_take_staged(mover);
        }
        if (index == NONE) {
            act = start_slot;
            index = take_request(mover);
        }
        if (index != NONE) {
            pthread_mutex_unlock(&mover->lock);
            act(mover, index);
            pthread_mutex_lock(&mover->lock);
        } else if (mover->stop) {
            pthread_mutex_unlock(&mover->lock);
            return false;
        } else if (mover->n_ranges > 0) {
            break;
        } else if (mover->n_copies > 0) { /* in case the link forgets to tell */
            moe_mover_wait_until(mover, &mover->requested,
                                 moe_now_ns() + mover->io_timeout_ns / LOOKS_PER_TIMEOUT);
        } else {
            pthread_cond_wait(&mover->requested, &mover->lock);
        }
    }
    pthread_mutex_unlock(&mover->lock);
    return true;
}

/* A large expert on a slow disk takes long; its blocks are progress too. */
static void look_for_progress(moe_mover *mover)
{
    moe_range_reader_stats reads;
    moe_range_reader_get_stats(mover->reader, &reads);
    if (reads.bytes_read != mover->n_bytes_seen) {
        mover->n_bytes_seen = reads.bytes_read;
        pthread_mutex_lock(&mover->lock);
        moe_mover_note_progress(mover);
        pthread_mutex_unlock(&mover->lock);
    }
}

/* Copies on the link come to their end, or the time is over. */
static bool await_copies(moe_mover *mover, uint64_t patience_ns)
{
    uint64_t deadline = moe_now_ns() + patience_ns;
    pthread_mutex_lock(&mover->lock);
    while (mover->n_copies > 0 && moe_now_ns() < deadline) {
        if (moe_mover_take_done_copy(mover) == NONE) {
            moe_mover_wait_until(mover, &mover->requested, deadline);
        }
    }
    bool ended = mover->n_copies == 0;
    pthread_mutex_unlock(&mover->lock);
    return ended;
}

/* The thread owns the reader, so it closes it: that waits for what is being read. */
void *moe_mover_main(void *arg)
{
    moe_mover *mover = arg;
    moe_range_done done[MAX_DONE];
    while (take_requests(mover)) {
        uint32_t n = moe_range_reader_wait(mover->reader, done, MAX_DONE,
                                           (int64_t)(mover->io_timeout_ns / LOOKS_PER_TIMEOUT));
        look_for_progress(mover);
        for (uint32_t i = 0; i < n; i++) {
            process_done(mover, &done[i]);
        }
    }
    pthread_mutex_lock(&mover->lock);
    uint64_t patience_ns = moe_mover_closing_patience(mover);
    pthread_mutex_unlock(&mover->lock);
    bool copied = await_copies(mover, patience_ns);
    moe_mover_leave_link(mover); /* whose news would wake the reader */
    moe_range_reader_hurry(mover->reader, patience_ns);
    bool read = moe_range_reader_close(&mover->reader);
    pthread_mutex_lock(&mover->lock);
    mover->ended = true;
    mover->hangs = !copied || !read;
    pthread_cond_broadcast(&mover->finished);
    pthread_mutex_unlock(&mover->lock);
    return NULL;
}

void moe_mover_wake(moe_mover *mover)
{
    pthread_cond_signal(&mover->requested);
    moe_range_reader_wake(mover->reader);
}

void moe_mover_submit(moe_mover *mover, uint32_t index, const moe_move *move)
{
    moe_mover_slot *slot = &mover->slots[index];
    pthread_mutex_lock(&mover->lock);
    slot->move = *move;
    slot->status = MOE_OK;
    slot->in_memory = move->in_memory;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        slot->data[p] = move->buffers[p];
    }
    moe_mover_set_state(slot, move->in_memory ? MOE_SLOT_STAGED : MOE_SLOT_QUEUED);
    moe_mover_enqueue(mover, index, move->in_memory ? MOE_STAGE_COPY : MOE_STAGE_READ);
    count_urgent(mover, slot);
    pthread_mutex_unlock(&mover->lock);
    moe_mover_wake(mover);
}

/* Under the lock: takes a request that waits out of its queue. */
static bool take_out(moe_mover *mover, uint32_t index, moe_mover_stage *stage)
{
    moe_slot_state state = moe_mover_get_state(&mover->slots[index]);
    *stage = state == MOE_SLOT_STAGED ? MOE_STAGE_COPY : MOE_STAGE_READ;
    if (state != MOE_SLOT_QUEUED && state != MOE_SLOT_STAGED) {
        return false;
    }
    moe_mover_dequeue(mover, index, *stage);
    no_longer_urgent(mover, &mover->slots[index]);
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
        count_urgent(mover, slot);
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
    return moe_mover_get_state(&mover->slots[slot]);
}

uint64_t moe_mover_n_finished(const moe_mover *mover)
{
    return atomic_load_explicit(&mover->n_finished, memory_order_acquire);
}

const uint8_t *moe_mover_data(const moe_mover *mover, uint32_t slot, int part)
{
    const moe_mover_slot *s = &mover->slots[slot];
    return mover->device != NULL ? s->move.device_buffers[part] : s->data[part];
}

const uint8_t *moe_mover_host_data(const moe_mover *mover, uint32_t slot, int part)
{
    const moe_mover_slot *s = &mover->slots[slot];
    return s->in_memory ? s->data[part] : NULL;
}

void moe_mover_reset(moe_mover *mover, uint32_t slot)
{
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
