/* SPDX-License-Identifier: MIT */
#include "runtime/base/random.h"

static uint64_t rotate_left(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

#define GOLDEN 0x9e3779b97f4a7c15u

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void moe_random_seed(moe_random *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += GOLDEN;
        random->state[i] = mix(seed);
    }
}

uint64_t moe_random_next(moe_random *random)
{
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

double moe_random_uniform(moe_random *random)
{
    return (double)(moe_random_next(random) >> 11) * 0x1p-53;
}

double moe_random_mix(uint64_t number, uint64_t index)
{
    return ((double)(mix(number + (index + 1) * GOLDEN) >> 11) + 0.5) * 0x1p-53;
}
