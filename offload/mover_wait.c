/* SPDX-License-Identifier: MIT */
/* Waits for slots, and detects a disk or link that hangs. */
#include "offload/mover_state.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* A cancellation may come from a signal handler, which can wake nobody, so waits look for it this
 * often. */
#define CANCEL_LOOK_NS 20000000u

static bool is_under_way(const moe_mover *mover, uint32_t slot)
{
    moe_slot_state state = moe_mover_get_state(&mover->slots[slot]);
    return state == MOE_SLOT_LOADING || state == MOE_SLOT_COPYING;
}

/* Finds one of these slots that the disk or link is working on. If there is none, finds any such
 * slot of the mover, since these queue behind it. */
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
    if (moe_mover_get_state(&mover->slots[slot]) == MOE_SLOT_COPYING) {
        return moe_fail(err, MOE_ERR_DEVICE,
                        "the device has not answered for %.3g s while an expert was copied to it; "
                        "its driver may hang (look into dmesg)",
                        seconds);
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
        moe_slot_state state = moe_mover_get_state(&mover->slots[slots[i]]);
        if (state == MOE_SLOT_READY || state == MOE_SLOT_FAILED) {
            return true;
        }
    }
    return false;
}

/* How long a wait lasts: shorter while a hang is known, but enough for a part that does not hang.
 */
static uint64_t patience(const moe_mover *mover)
{
    MOE_ASSERT(moe_mover_is_locked(mover));
    return mover->stalled ? mover->io_timeout_ns / MOE_MOVER_STALLED_DIVISOR : mover->io_timeout_ns;
}

static bool is_cancelled(const moe_wait_cancel *cancel)
{
    return cancel->is_cancelled != NULL && cancel->is_cancelled(cancel->user);
}

/* Waits until something finishes, or it is time to look again. */
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
    mover->stats.wait_ns += moe_now_ns() - begin;
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
