/* SPDX-License-Identifier: MIT */
#ifndef SERVER_CLOCK_H
#define SERVER_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns the monotonic clock in nanoseconds. Nobody can set this clock back. */
static inline uint64_t server_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
