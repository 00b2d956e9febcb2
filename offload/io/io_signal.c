/* SPDX-License-Identifier: MIT */
#include "offload/io/io_signal.h"

#include <errno.h>
#include <time.h>

#include "runtime/base/clock.h"

bool moe_io_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) {
        return false;
    }
    bool good = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return good;
}

bool moe_io_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        pthread_cond_wait(condition, lock);
        return true;
    }
    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                .tv_nsec = (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(condition, lock, &deadline) != ETIMEDOUT;
}

uint64_t moe_io_deadline(int64_t timeout_ns)
{
    return timeout_ns < 0 ? UINT64_MAX : moe_now_ns() + (uint64_t)timeout_ns;
}
