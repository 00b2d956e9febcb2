/* SPDX-License-Identifier: MIT */
/* The internals of length control that the three controllers share. The contract
 * (length_control_open.c) keeps the baseline, the trace and the report; a controller only decides
 * how long a draft may be.
 */
#ifndef MOE_DRAFT_LENGTH_CONTROLLER_H
#define MOE_DRAFT_LENGTH_CONTROLLER_H

#include "runtime/draft/length_control.h"

#define MOE_LENGTH_WINDOW     16u /* iterations in one value of utility */
#define MOE_LENGTH_BASE_SLOTS 16u
#define MOE_LENGTH_BATCH      4u /* sequences from which on they are priced as a batch */

/* What plain decoding costs with a given number of sequences. */
typedef struct moe_length_base {
    uint32_t n_sequences; /* 0: the slot is free */
    uint32_t n_samples;
    uint32_t age; /* iterations since the last sample */
    double cost;  /* the cost of a sequence's token; 0 until a measurement is complete */
    double sum;   /* costs in the measurement under way (cascade) */
    uint32_t n_sum;
} moe_length_base;

typedef struct moe_length_ops {
    int (*create)(moe_length_control *control, moe_error *err);
    uint32_t (*begin)(moe_length_control *control);
    double (*survival)(const moe_length_control *control, uint32_t depth, float confidence);
    bool (*continues)(const moe_length_control *control, uint32_t depth, double path_survival,
                      uint32_t n_sharing);
    double (*promise)(const moe_length_control *control); /* NULL: not known */
    void (*note_drafts)(moe_length_control *control, double n_tokens, uint32_t n_rows); /* NULL */
    bool (*keeps)(const moe_length_control *control, double path_survival); /* NULL: always */
    uint32_t (*cut)(const moe_length_control *control, const double *survival,
                    const double *fetch_cost, uint32_t n, uint32_t n_sharing);
    void (*note_token)(moe_length_control *control, uint32_t depth, float confidence,
                       bool accepted);
    uint32_t (*listen)(moe_length_control *control);                              /* NULL: never */
    bool (*rests)(const moe_length_control *control);                             /* NULL: never */
    bool (*wants_plain)(const moe_length_control *control);                       /* NULL: never */
    bool (*get_habit)(const moe_length_control *control, moe_draft_habit *habit); /* NULL: none */
    void (*end)(moe_length_control *control, const moe_length_iteration *iteration);
    bool hears_silent_drafts;
    /* Whether a baseline stays in use when the number of sequences falls. Fewer sequences have
     * more expensive tokens, so an old baseline hides no loss. */
    bool keeps_base;
} moe_length_ops;

typedef struct moe_length_sum {
    double tokens, cost;
} moe_length_sum;

struct moe_length_control {
    /* Set at creation, never changed. */
    moe_length_options options; /* defaults filled in */
    const moe_length_ops *ops;
    void *state; /* the controller's private state */
    /* The current iteration. */
    uint32_t n_sequences;
    bool n_sequences_changed; /* since the last iteration */
    uint32_t draft_length, listen_length;
    /* Baselines, one slot for each number of sequences modulo the number of slots. On a collision
     * the older one is overwritten. */
    moe_length_base bases[MOE_LENGTH_BASE_SLOTS];
    moe_length_base *base; /* of n_sequences */
    /* These fields serve the report and the trace. */
    moe_length_sum recent[MOE_LENGTH_WINDOW]; /* ring by iteration; costs in base costs */
    moe_length_report report;
    double inverse_utility_sum;
    uint64_t n_runs;
    uint8_t *trace;
    uint64_t n_trace, trace_capacity;
};

extern const moe_length_ops moe_length_static, moe_length_cascade, moe_length_survival_ops;

/* Whether an iteration was plain decoding: no model drafted, and only the sequences' own rows
 * were evaluated. K does not matter. */
static inline bool moe_length_is_plain(const moe_length_iteration *iteration)
{
    return iteration->n_rows <= iteration->n_sequences && iteration->n_draft_passes == 0;
}

#endif
