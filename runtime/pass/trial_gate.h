/* SPDX-License-Identifier: MIT */
/* Whether something that ought to help does: it is tried in turns with going without it, on the
 * work itself, and the better of the two is kept until it is time to look again.
 *
 *     TRY: off, on, off, on (runs of 6 passes) --> HOLD the better --> TRY ...
 *             |    |                               (128 passes, doubled while the verdict stays)
 *             |    +-- clearly dearer ------------> HOLD off
 *             +-- off has nothing to spare -------> HOLD off
 *
 * What helps by filling idle time is not tried at all where the first run without it was busy
 * nearly all of the time: it could only be in the way.
 *
 * Both ways are compared by their mean without the two dearest passes: outliers do not decide, but
 * a tail of dear passes counts. The first pass of a run is left out, because it still lives off the
 * one before. A tie goes to off. In the long run the worse way takes 12 of at least 1024 passes. */
#ifndef MOE_PASS_TRIAL_GATE_H
#define MOE_PASS_TRIAL_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define MOE_TRIAL_RUN  6u /* passes of a run */
#define MOE_TRIAL_RUNS 4u /* off, on, off, on */

typedef struct moe_trial_gate {
    bool holding;
    bool on;
    uint32_t left; /* passes of the hold */
    uint32_t hold; /* length of the next one */
    uint32_t n;    /* passes of the trial so far */
    double costs[2][MOE_TRIAL_RUN * MOE_TRIAL_RUNS / 2];
    uint32_t n_costs[2];
    double busy_ns, time_ns;                  /* of the first run */
    uint64_t n_trials, n_held_on, n_held_off; /* for reports */
} moe_trial_gate;

void moe_trial_gate_init(moe_trial_gate *gate);
/* For the pass that comes. */
bool moe_trial_gate_is_on(const moe_trial_gate *gate);
/* A pass: the work in it (so that passes of all widths compare by time_ns / work), its time, and
 * how much of that it spent on what the thing on trial would compete for. */
void moe_trial_gate_note(moe_trial_gate *gate, double work, double time_ns, double busy_ns);

#endif
