/* SPDX-License-Identifier: MIT */
/* Shared by the controllers: the baseline, the report, and the contract of a kind. */
#ifndef MOE_SPECULATE_LENGTH_INTERNAL_H
#define MOE_SPECULATE_LENGTH_INTERNAL_H

#include <stddef.h>

#include "runtime/speculate/length_control.h"

#define MOE_LENGTH_RECENT 16u /* plain iterations that the baseline is the median of */
#define MOE_LENGTH_WINDOW 16u /* iterations of a utility in the report */

typedef struct moe_length_kind_ops {
    size_t state_size;
    void (*init)(moe_length_control *control);
    uint32_t (*begin)(moe_length_control *control);
    bool (*go_on)(const moe_length_control *control, uint32_t depth, double path_survival);
    uint32_t (*cut)(const moe_length_control *control, const double *survival,
                    const double *fetch_cost, uint32_t n);
    /* utility: of the iteration; 1 while there is no baseline. */
    void (*end)(moe_length_control *control, const moe_length_iteration *iteration, double utility);
    /* The number of sequences has changed: measurements of costs are void. */
    void (*restart)(moe_length_control *control);
} moe_length_kind_ops;

extern const moe_length_kind_ops moe_length_static;
extern const moe_length_kind_ops moe_length_cascade;
extern const moe_length_kind_ops moe_length_survival_ops;

/* Acceptance by depth and confidence. */
#define MOE_LENGTH_DEPTHS  8u
#define MOE_LENGTH_BUCKETS 8u
typedef struct moe_acceptance {
    float accepted, seen; /* decayed counts, a prior included */
} moe_acceptance;

struct moe_length_control {
    const moe_length_kind_ops *ops;
    moe_length_options options; /* defaults filled in */
    void *state;
    uint32_t n_sequences;
    uint32_t length; /* of the iteration at work */
    /* Costs of the latest plain iterations. */
    double plain[MOE_LENGTH_RECENT];
    double plain_fetch[MOE_LENGTH_RECENT];
    uint32_t n_plain; /* ever, since the last restart */
    double base;      /* their median; 0: unknown */
    double base_fetch;
    moe_acceptance acceptance[MOE_LENGTH_DEPTHS][MOE_LENGTH_BUCKETS];
    /* The report. */
    moe_length_report report;
    double window_tokens, window_cost;
    uint32_t window_n;
    double harmonic_sum; /* of 1 / U */
    uint64_t n_windows;
    uint8_t *trace;
    uint64_t n_trace, trace_capacity;
};

#endif
