/* SPDX-License-Identifier: MIT */
#include "runtime/place/place_times.h"

/* Weight of the newest measurement in an average. */
#define NEWEST_WEIGHT 0.125

static int bucket_of(double rows_per_expert)
{
    int bucket = 0;
    while (rows_per_expert >= 2.0 && bucket + 1 < MOE_PLACE_BUCKETS) {
        rows_per_expert /= 2.0;
        bucket++;
    }
    return bucket;
}

void moe_place_note(moe_place_times *times, uint32_t n_experts, uint32_t n_rows, uint64_t ns)
{
    if (n_experts == 0) {
        return;
    }
    double *average = &times->ns[bucket_of((double)n_rows / n_experts)];
    double newest = (double)ns / n_experts;
    *average = *average == 0.0 ? newest : *average + NEWEST_WEIGHT * (newest - *average);
}

/* The measured time, or one scaled from the nearest measured bucket. More rows cost at most in
 * proportion; fewer are assumed to cost the same. */
double moe_place_cost_ns(const moe_place_times *times, double n_rows)
{
    int bucket = bucket_of(n_rows);
    for (int b = bucket; b >= 0; b--) {
        if (times->ns[b] > 0.0) {
            return times->ns[b] * (double)(1u << (bucket - b));
        }
    }
    for (int b = bucket + 1; b < MOE_PLACE_BUCKETS; b++) {
        if (times->ns[b] > 0.0) {
            return times->ns[b];
        }
    }
    return 0.0;
}
