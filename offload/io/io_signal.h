/* SPDX-License-Identifier: MIT */
/* Condition variables on the monotonic clock, each used with its lock. */
#ifndef MOE_OFFLOAD_IO_SIGNAL_H
#define MOE_OFFLOAD_IO_SIGNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* False when the system has no room for another condition variable. */
bool moe_io_condition_init(pthread_cond_t *condition);

/* Waits, with the lock held, until signalled or until the monotonic time is deadline_ns
 * (UINT64_MAX: no deadline). False once the deadline has passed. May return true although nothing
 * was signalled. */
bool moe_io_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline_ns);

/* now + timeout; UINT64_MAX when there is no timeout (< 0). */
uint64_t moe_io_deadline(int64_t timeout_ns);

#endif
