/* SPDX-License-Identifier: MIT */
/* Decides whether a measure that should save time does save time. The gate tries passes with and
 * without the measure in turns, on the work itself, and keeps the better of the two until the next
 * trial.
 *
 *    TRY: off, on, off, on (runs of 6 passes) --> HOLD the better --> TRY ...
 *            |    |                               (128 passes, doubled while the verdict stays)
 *            |    +-- clearly dearer ------------> HOLD off
 *            +-- off has nothing to spare -------> HOLD off
 *
 * A measure that fills idle time is not tried if the first run without it was busy most of the
 * time: even the trial would cost bytes, and there is little idle time to fill. Else it must pay
 * for the bytes that it adds: it is kept if it saves a larger share of the waiting than it adds of
 * bytes.
 *
 * Both ways are compared by their mean without the two dearest passes, so outliers do not decide,
 * but a tail of dear passes counts. The first pass of a run is left out, because the run before
 * still influences it. A tie means off. In the long run the worse way takes 12 of at least 1024
 * passes. */
#ifndef MOE_PASS_TRIAL_GATE_H
#define MOE_PASS_TRIAL_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define MOE_TRIAL_RUN  6u /* passes of a run */
#define MOE_TRIAL_RUNS 4u /* off, on, off, on */

typedef struct moe_trial_gate {
    bool holding;
    bool on;
    uint32_t left; /* passes until the end of the hold */
    uint32_t hold; /* passes of the next hold */
    uint32_t n;    /* passes of the trial so far */
    double costs[2][MOE_TRIAL_RUN * MOE_TRIAL_RUNS / 2];
    uint32_t n_costs[2];
    double busy_ns, time_ns; /* of the trial's first run */
    /* of the passes counted in costs; [1]: with the measure. */
    double bytes[2], work[2];
    uint64_t n_trials, n_held_on, n_held_off; /* for reports */
} moe_trial_gate;

void moe_trial_gate_init(moe_trial_gate *gate);
/* Whether the coming pass uses the measure. */
bool moe_trial_gate_is_on(const moe_trial_gate *gate);
typedef struct moe_trial_pass {
    double work; /* passes of all widths compare by time_ns / work */
    double time_ns;
    double busy_ns; /* the part of time_ns that was spent on work that the measure competes with */
    double bytes;   /* moved */
} moe_trial_pass;

void moe_trial_gate_note(moe_trial_gate *gate, const moe_trial_pass *pass);

#endif
