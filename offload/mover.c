/* SPDX-License-Identifier: MIT */
#include "offload/mover.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define NONE                   UINT32_MAX
#define DEFAULT_MAX_PREFETCHES 2u
#define MAX_DONE               64u
#define MAX_RANGES_IN_FLIGHT   192u /* below the reader's own limit */

typedef struct mover_slot {
    _Atomic int state; /* moe_slot_state */
    /* Written by submit while ABSENT, read by the mover from LOADING on. */
    moe_move move;
    /* Links of its queue, under the lock. */
    uint32_t next, previous;
    /* The mover's alone while LOADING; data is everybody's when READY. */
    uint8_t n_parts_left;
    uint8_t retried; /* a bit for each part */
    int status;
    const uint8_t *data[MOE_EXPERT_PARTS];
} mover_slot;

typedef struct queue {
    uint32_t first, last;
} queue;

struct moe_mover {
    /* Set at open, never changed. */
    moe_range_reader *reader;
    uint32_t n_slots;
    uint32_t max_prefetches;
    pthread_t thread;

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t requested; /* the mover waits here when nothing is in flight */
    pthread_cond_t finished;  /* everybody else waits here */
    queue queues[MOE_CAUSE_COUNT];
    bool stop;
    moe_mover_stats stats;
    int last_status;
    uint32_t last_failed; /* its slot */
    moe_error last_error;

    _Atomic uint32_t n_urgent; /* demand and verification, queued or loading */

    /* The mover's alone. */
    uint32_t n_ranges;     /* in flight */
    uint32_t n_prefetches; /* in flight */

    mover_slot *slots; /* [n_slots] */
};

static void set_state(mover_slot *slot, moe_slot_state state)
{
    atomic_store_explicit(&slot->state, state, memory_order_release);
}

static moe_slot_state get_state(const mover_slot *slot)
{
    return (moe_slot_state)atomic_load_explicit(&slot->state, memory_order_acquire);
}

static void enqueue(moe_mover *mover, uint32_t index)
{
    mover_slot *slot = &mover->slots[index];
    queue *q = &mover->queues[slot->move.cause];
    slot->next = NONE;
    slot->previous = q->last;
    if (q->last != NONE) {
        mover->slots[q->last].next = index;
    } else {
        q->first = index;
    }
    q->last = index;
    if (slot->move.cause != MOE_CAUSE_PREFETCH) {
        atomic_fetch_add(&mover->n_urgent, 1);
    }
}

/* Out of its queue; still counted as urgent if it was. */
static void dequeue(moe_mover *mover, uint32_t index)
{
    mover_slot *slot = &mover->slots[index];
    queue *q = &mover->queues[slot->move.cause];
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

static void no_longer_urgent(moe_mover *mover, const mover_slot *slot)
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
            index = mover->queues[cause].first;
        }
    }
    if (index != NONE) {
        dequeue(mover, index);
        set_state(&mover->slots[index], MOE_SLOT_LOADING);
    }
    return index;
}

/* A failed prefetch is nobody's error: who needs the expert asks again. */
static void record_error(moe_mover *mover, uint32_t index, const moe_error *error)
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
    mover_slot *slot = &mover->slots[index];
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
        record_error(mover, index, &error);
    }
}

static void finish_slot(moe_mover *mover, uint32_t index)
{
    mover_slot *slot = &mover->slots[index];
    uint64_t bytes = moe_expert_ref_bytes(slot->move.expert);
    moe_range_reader_stats reads;
    moe_range_reader_get_stats(mover->reader, &reads);
    pthread_mutex_lock(&mover->lock);
    mover->stats.bytes_read = reads.bytes_read;
    if (slot->status == MOE_OK) {
        mover->stats.n_moves[slot->move.cause]++;
        mover->stats.bytes[slot->move.cause] += bytes;
    } else {
        mover->stats.n_failed++;
    }
    mover->n_prefetches -= slot->move.cause == MOE_CAUSE_PREFETCH;
    no_longer_urgent(mover, slot);
    set_state(slot, slot->status == MOE_OK ? MOE_SLOT_READY : MOE_SLOT_FAILED);
    pthread_cond_broadcast(&mover->finished);
    pthread_mutex_unlock(&mover->lock);
}

static void start_slot(moe_mover *mover, uint32_t index)
{
    mover_slot *slot = &mover->slots[index];
    slot->status = MOE_OK;
    slot->retried = 0;
    slot->n_parts_left = 0;
    mover->n_prefetches += slot->move.cause == MOE_CAUSE_PREFETCH;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        submit_part(mover, index, p);
    }
    if (slot->n_parts_left == 0) {
        finish_slot(mover, index);
    }
}

/* False when the part's bytes are not those that the checksum was taken of: they are read once
 * more, and then given up. */
static bool verify_part(moe_mover *mover, uint32_t index, int part)
{
    mover_slot *slot = &mover->slots[index];
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
    record_error(mover, index, &error);
    return false;
}

static void process_done(moe_mover *mover, const moe_range_done *done)
{
    uint32_t index = (uint32_t)(done->tag / MOE_EXPERT_PARTS);
    int part = (int)(done->tag % MOE_EXPERT_PARTS);
    mover_slot *slot = &mover->slots[index];
    mover->n_ranges--;
    slot->n_parts_left--;
    if (done->status != MOE_OK) {
        slot->status = done->status;
        record_error(mover, index, &done->error);
    } else {
        slot->data[part] = done->data;
        (void)verify_part(mover, index, part);
    }
    if (slot->n_parts_left == 0) {
        finish_slot(mover, index);
    }
}

/* Hands requests to the reader; sleeps when there is nothing at all to do. False to stop. */
static bool take_requests(moe_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    for (;;) {
        uint32_t index = take_request(mover);
        if (index != NONE) {
            pthread_mutex_unlock(&mover->lock);
            start_slot(mover, index);
            pthread_mutex_lock(&mover->lock);
        } else if (mover->n_ranges > 0) {
            break;
        } else if (mover->stop) {
            pthread_mutex_unlock(&mover->lock);
            return false;
        } else {
            pthread_cond_wait(&mover->requested, &mover->lock);
        }
    }
    pthread_mutex_unlock(&mover->lock);
    return true;
}

static void *mover_main(void *arg)
{
    moe_mover *mover = arg;
    moe_range_done done[MAX_DONE];
    while (take_requests(mover)) {
        uint32_t n = moe_range_reader_wait(mover->reader, done, MAX_DONE, -1);
        for (uint32_t i = 0; i < n; i++) {
            process_done(mover, &done[i]);
        }
    }
    return NULL;
}

static void wake(moe_mover *mover)
{
    pthread_cond_signal(&mover->requested);
    moe_range_reader_wake(mover->reader);
}

int moe_mover_open(moe_mover **out, const moe_mover_options *options, moe_error *err)
{
    *out = NULL;
    moe_mover *mover = moe_calloc(1, sizeof *mover);
    mover_slot *slots = moe_calloc(options->n_slots, sizeof *slots);
    moe_range_reader *reader = options->reader;
    if (mover == NULL || slots == NULL) {
        moe_range_reader_close(&reader);
        free(mover);
        free(slots);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a mover of %u slots", options->n_slots);
    }
    mover->reader = reader;
    mover->slots = slots;
    mover->n_slots = options->n_slots;
    mover->max_prefetches =
        options->max_prefetches != 0 ? options->max_prefetches : DEFAULT_MAX_PREFETCHES;
    for (int i = 0; i < MOE_CAUSE_COUNT; i++) {
        mover->queues[i] = (queue){NONE, NONE};
    }
    pthread_mutex_init(&mover->lock, NULL);
    pthread_cond_init(&mover->requested, NULL);
    pthread_cond_init(&mover->finished, NULL);
    int code = pthread_create(&mover->thread, NULL, mover_main, mover);
    if (code != 0) {
        moe_range_reader_close(&mover->reader);
        free(slots);
        free(mover);
        return moe_fail(err, MOE_ERR_MEMORY, "cannot start the mover's thread (error %d)", code);
    }
    *out = mover;
    return MOE_OK;
}

void moe_mover_close(moe_mover **mover_ptr)
{
    moe_mover *mover = *mover_ptr;
    if (mover == NULL) {
        return;
    }
    for (uint32_t i = 0; i < mover->n_slots; i++) {
        (void)moe_mover_cancel(mover, i);
    }
    pthread_mutex_lock(&mover->lock);
    mover->stop = true;
    pthread_mutex_unlock(&mover->lock);
    wake(mover);
    pthread_join(mover->thread, NULL);
    moe_range_reader_close(&mover->reader);
    pthread_mutex_destroy(&mover->lock);
    pthread_cond_destroy(&mover->requested);
    pthread_cond_destroy(&mover->finished);
    free(mover->slots);
    free(mover);
    *mover_ptr = NULL;
}

void moe_mover_submit(moe_mover *mover, uint32_t index, const moe_move *move)
{
    mover_slot *slot = &mover->slots[index];
    pthread_mutex_lock(&mover->lock);
    slot->move = *move;
    set_state(slot, MOE_SLOT_QUEUED);
    enqueue(mover, index);
    pthread_mutex_unlock(&mover->lock);
    wake(mover);
}

void moe_mover_raise(moe_mover *mover, uint32_t index, moe_move_cause cause)
{
    mover_slot *slot = &mover->slots[index];
    pthread_mutex_lock(&mover->lock);
    bool raised = get_state(slot) == MOE_SLOT_QUEUED && cause < slot->move.cause;
    if (raised) {
        dequeue(mover, index);
        no_longer_urgent(mover, slot);
        slot->move.cause = cause;
        enqueue(mover, index);
    }
    pthread_mutex_unlock(&mover->lock);
    if (raised) {
        wake(mover);
    }
}

bool moe_mover_cancel(moe_mover *mover, uint32_t index)
{
    mover_slot *slot = &mover->slots[index];
    pthread_mutex_lock(&mover->lock);
    bool queued = get_state(slot) == MOE_SLOT_QUEUED;
    if (queued) {
        dequeue(mover, index);
        no_longer_urgent(mover, slot);
        set_state(slot, MOE_SLOT_ABSENT);
        mover->stats.n_cancelled++;
    }
    pthread_mutex_unlock(&mover->lock);
    return queued;
}

moe_slot_state moe_mover_state(const moe_mover *mover, uint32_t slot)
{
    return get_state(&mover->slots[slot]);
}

const uint8_t *moe_mover_data(const moe_mover *mover, uint32_t slot, int part)
{
    return mover->slots[slot].data[part];
}

void moe_mover_reset(moe_mover *mover, uint32_t slot)
{
    set_state(&mover->slots[slot], MOE_SLOT_ABSENT);
}

static bool any_settled(const moe_mover *mover, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        moe_slot_state state = get_state(&mover->slots[slots[i]]);
        if (state == MOE_SLOT_READY || state == MOE_SLOT_FAILED) {
            return true;
        }
    }
    return false;
}

void moe_mover_wait(moe_mover *mover, const uint32_t *slots, uint32_t n)
{
    if (any_settled(mover, slots, n)) {
        return;
    }
    uint64_t begin = moe_now_ns();
    pthread_mutex_lock(&mover->lock);
    while (!any_settled(mover, slots, n)) {
        pthread_cond_wait(&mover->finished, &mover->lock);
    }
    mover->stats.wait_ns += moe_now_ns() - begin;
    pthread_mutex_unlock(&mover->lock);
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
