/* SPDX-License-Identifier: MIT */
/* The cost of an expert in a place: moving averages of measured times. An expert's time depends on
 * its number of rows, so there is an average for each power of two of rows. */
#ifndef MOE_PLACE_PLACE_TIMES_H
#define MOE_PLACE_PLACE_TIMES_H

#include <stdint.h>

#define MOE_PLACE_BUCKETS 14

typedef struct moe_place_times {
    double ns[MOE_PLACE_BUCKETS]; /* of one expert; 0: not measured */
} moe_place_times;

/* Notes that n_experts experts, with n_rows rows in all, took this long. */
void moe_place_note(moe_place_times *times, uint32_t n_experts, uint32_t n_rows, uint64_t ns);
/* Estimates the time of one expert with n_rows rows; 0: nothing is known. */
double moe_place_cost_ns(const moe_place_times *times, double n_rows);

#endif
