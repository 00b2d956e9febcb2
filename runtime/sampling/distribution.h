/* SPDX-License-Identifier: MIT */
/* Distributions over tokens, and draws from them. */
#ifndef MOE_SAMPLING_DISTRIBUTION_H
#define MOE_SAMPLING_DISTRIBUTION_H

#include <moe/status.h>

#include "runtime/base/random.h"

typedef struct moe_choice {
    int32_t token;
    double p;
} moe_choice;

/* Distinct tokens; p >= 0 and not all 0. The sum may be any, since only ratios count. Other tokens
 * have p = 0. */
typedef struct moe_distribution {
    uint32_t n;
    moe_choice *choices;
} moe_distribution;

/* The sum of all p. */
double moe_distribution_total(const moe_distribution *distribution);

/* Copies into *out, whose array holds *capacity choices and grows; released with free(). */
int moe_distribution_copy(moe_distribution *out, uint32_t *capacity, const moe_distribution *from,
                          moe_error *err);

/* Draws once; the distribution is not changed. */
int32_t moe_distribution_draw(const moe_distribution *distribution, moe_random *random);
/* A draw that two distributions can share. The number determines an exponential variate for each
 * token, and the token with the least variate / p wins. With a random number a token has its
 * probability. With the same number, distributions of total variation distance d choose the same
 * token with probability (1 - d) / (1 + d) at least (Daliri, Musco and Suresh 2024, section 3).
 * Only the number and the distribution decide, not the order of choices. */
int32_t moe_distribution_race(const moe_distribution *distribution, uint64_t number);
/* n distinct tokens drawn without replacement, in order; fewer when fewer have p > 0. Returns how
 * many; q[i]: the probability that tokens[i] had in its draw. distribution is not changed. */
uint32_t moe_distribution_draw_distinct(const moe_distribution *distribution, uint32_t n,
                                        moe_random *random, int32_t *tokens, float *q);

#endif
