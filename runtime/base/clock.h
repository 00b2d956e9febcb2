/* SPDX-License-Identifier: MIT */
#ifndef MOE_BASE_CLOCK_H
#define MOE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Monotonic time. */
static inline uint64_t moe_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
