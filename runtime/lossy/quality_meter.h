/* SPDX-License-Identifier: MIT */
/* Measures how far a lossy mode is from the exact pass, on a share of the positions. */
#ifndef MOE_LOSSY_QUALITY_METER_H
#define MOE_LOSSY_QUALITY_METER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct moe_quality_meter {
    /* Set at creation. */
    double share;  /* of positions to be checked, (0, 1] */
    double limit;  /* mean KL, in nats, above which the mode turns off; <= 0: none */
    uint64_t seed; /* chooses the positions */
    /* Measured. */
    uint64_t n_positions, n_sampled, n_agreed; /* agreed: same argmax */
    double kl_sum, kl_max;
    bool exceeded; /* the limit was exceeded; see moe_quality_meter_add() */
} moe_quality_meter;

#define MOE_QUALITY_MIN_SAMPLES 8u
/* The caller always compares this many first positions of a session, so that short answers are
 * measured, too, and the limit can act before much is written. */
#define MOE_QUALITY_FIRST_POSITIONS MOE_QUALITY_MIN_SAMPLES

void moe_quality_meter_init(moe_quality_meter *meter, double share, double limit, uint64_t seed);
/* Whether to check the next position. Depends on the seed and the number of positions before it
 * only. */
bool moe_quality_meter_next(moe_quality_meter *meter);
/* Adds KL(exact || lossy) of the softmaxes, in nats and double, and whether the argmaxes (ties: the
 * lower id) agree. exact, lossy: [n_vocab] logits; -infinity is a probability of 0; a NaN makes the
 * KL infinite.
 *
 * The limit is exceeded when the mean is above it on at least MOE_QUALITY_MIN_SAMPLES samples, or
 * earlier if the sum is so great that even samples of 0 could not bring the mean of that many below
 * the limit. Once exceeded, it stays exceeded. */
void moe_quality_meter_add(moe_quality_meter *meter, const float *exact, const float *lossy,
                           uint32_t n_vocab);
/* Returns the mean KL so far; NaN if nothing was measured. */
double moe_quality_meter_mean_kl(const moe_quality_meter *meter);

#endif
