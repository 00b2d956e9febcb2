/* SPDX-License-Identifier: MIT */
/* Random numbers: xoshiro256** (Blackman and Vigna), the same on every machine. */
#ifndef MOE_BASE_RANDOM_H
#define MOE_BASE_RANDOM_H

#include <stdint.h>

typedef struct moe_random {
    uint64_t state[4];
} moe_random;

/* Spreads the seed over the state by splitmix64, as the generator's authors advise. */
void moe_random_seed(moe_random *random, uint64_t seed);
uint64_t moe_random_next(moe_random *random);
/* Returns a random number in [0, 1) with 53 random bits. */
double moe_random_uniform(moe_random *random);
/* A number in (0, 1): a function of both arguments, which is as good as random in each. */
double moe_random_mix(uint64_t number, uint64_t index);

#endif
