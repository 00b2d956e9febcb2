/* SPDX-License-Identifier: MIT */
/* Opens and closes a mover. */
#include <stdlib.h>

#include "offload/mover_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define DEFAULT_MAX_PREFETCHES 2u
#define DEFAULT_IO_TIMEOUT_NS  30000000000u
#define JOIN_SLACK_NS          1000000000u

/* Wakes the mover when the link has news. Takes the lock first, so that the mover either sleeps or
 * has not looked yet. */
static void copy_notice(void *user)
{
    moe_mover *mover = user;
    pthread_mutex_lock(&mover->lock);
    moe_mover_wake(mover);
    pthread_mutex_unlock(&mover->lock);
}

static void listen_to_link(moe_mover *mover)
{
    if (mover->device != NULL) {
        mover->device->link->copy_notify(mover->device, copy_notice, mover);
    }
}

/* Makes time-outs of the condition use the clock of moe_now_ns(). */
static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

int moe_mover_open(moe_mover **out, const moe_mover_options *options, moe_error *err)
{
    MOE_ASSERT(options->reader != NULL);
    *out = NULL;
    moe_mover *mover = moe_calloc(1, sizeof *mover);
    moe_mover_slot *slots = moe_calloc(options->n_slots, sizeof *slots);
    moe_range_reader *reader = options->reader;
    if (mover == NULL || slots == NULL) {
        moe_range_reader_close(&reader);
        free(mover);
        free(slots);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a mover of %u slots", options->n_slots);
    }
    mover->reader = reader;
    mover->device = options->device;
    mover->slots = slots;
    mover->n_slots = options->n_slots;
    mover->max_prefetches =
        options->max_prefetches != 0 ? options->max_prefetches : DEFAULT_MAX_PREFETCHES;
    for (int i = 0; i < MOE_STAGE_COUNT * MOE_CAUSE_COUNT; i++) {
        mover->queues[i / MOE_CAUSE_COUNT][i % MOE_CAUSE_COUNT] =
            (moe_mover_queue){MOE_MOVER_NONE, MOE_MOVER_NONE};
    }
    mover->saves = (moe_mover_queue){MOE_MOVER_NONE, MOE_MOVER_NONE};
    mover->io_timeout_ns =
        options->io_timeout_ns != 0 ? options->io_timeout_ns : DEFAULT_IO_TIMEOUT_NS;
    pthread_mutex_init(&mover->lock, NULL);
    init_condition(&mover->requested);
    init_condition(&mover->finished);
    listen_to_link(mover);
    int code = pthread_create(&mover->thread, NULL, moe_mover_main, mover);
    if (code != 0) {
        moe_mover_leave_link(mover);
        moe_range_reader_close(&mover->reader);
        free(slots);
        free(mover);
        return moe_fail(err, MOE_ERR_MEMORY, "cannot start the mover's thread (error %d)", code);
    }
    *out = mover;
    return MOE_OK;
}

/* Waits for the thread to end. If the thread hangs in a read that it does itself (the engine named
 * "sync"), leaves it behind with all memory that it may still use. */
static bool join(moe_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    uint64_t deadline = moe_now_ns() + 2 * moe_mover_closing_patience(mover) + JOIN_SLACK_NS;
    while (!mover->ended && moe_now_ns() < deadline) {
        moe_mover_wait_until(mover, &mover->finished, deadline);
    }
    bool ended = mover->ended;
    pthread_mutex_unlock(&mover->lock);
    if (ended) {
        pthread_join(mover->thread, NULL);
    } else {
        pthread_detach(mover->thread);
    }
    return ended;
}

bool moe_mover_close(moe_mover **mover_ptr)
{
    moe_mover *mover = *mover_ptr;
    *mover_ptr = NULL;
    if (mover == NULL) {
        return true;
    }
    for (uint32_t i = 0; i < mover->n_slots; i++) {
        (void)moe_mover_cancel(mover, i);
    }
    pthread_mutex_lock(&mover->lock);
    MOE_ASSERT(moe_mover_queues_are_sane(mover));
    mover->stop = true;
    moe_mover_wake(mover);
    pthread_mutex_unlock(&mover->lock);
    if (!join(mover)) {
        return false;
    }
    bool hangs = mover->hangs;
    pthread_mutex_destroy(&mover->lock);
    pthread_cond_destroy(&mover->requested);
    pthread_cond_destroy(&mover->finished);
    free(mover->slots);
    free(mover);
    return !hangs;
}
