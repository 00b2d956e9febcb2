/* SPDX-License-Identifier: MIT */
/* Whether something that ought to help does: it is tried in turns with going without it, on the
 * work itself, and the better of the two is kept until it is time to look again.
 *
 *     TRY: on, off, on, off (runs of 6 passes) --> HOLD the better --> TRY ...
 *                                                  (64 passes, doubled while the verdict stays)
 *
 * Both kinds of runs are medians, so single outliers do not decide; the first pass of each is left
 * out, because it still lives off the one before. A tie goes to off. In the long run the worse way
 * takes 12 of at least 1024 passes. */
#ifndef MOE_ENGINE_TRIAL_GATE_H
#define MOE_ENGINE_TRIAL_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define MOE_TRIAL_RUN  6u /* passes of a run */
#define MOE_TRIAL_RUNS 4u /* on, off, on, off */

typedef struct moe_trial_gate {
    bool holding;
    bool on;
    uint32_t left; /* passes of the hold */
    uint32_t hold; /* length of the next one */
    uint32_t n;    /* passes of the trial so far */
    double costs[2][MOE_TRIAL_RUN * MOE_TRIAL_RUNS / 2];
    uint32_t n_costs[2];
    uint64_t n_trials, n_held_on, n_held_off; /* for reports */
} moe_trial_gate;

void moe_trial_gate_init(moe_trial_gate *gate);
/* For the pass that comes. */
bool moe_trial_gate_is_on(const moe_trial_gate *gate);
/* What the pass cost, in a unit in which passes are alike whatever their width. */
void moe_trial_gate_note(moe_trial_gate *gate, double cost);

#endif
