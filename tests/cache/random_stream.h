/* SPDX-License-Identifier: MIT */
/* Numbers for tests: the same ones everywhere. */
#ifndef TESTS_CACHE_RANDOM_STREAM_H
#define TESTS_CACHE_RANDOM_STREAM_H

#include <stdint.h>

typedef struct test_random {
    uint64_t state;
} test_random;

/* splitmix64 */
static inline uint64_t test_random_next(test_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t test_random_below(test_random *random, uint32_t limit)
{
    return (uint32_t)(test_random_next(random) % limit);
}

#endif
