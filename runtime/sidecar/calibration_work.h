/* SPDX-License-Identifier: MIT */
/* Functions and data shared by the files that run a calibration. */
#ifndef MOE_SIDECAR_CALIBRATION_WORK_H
#define MOE_SIDECAR_CALIBRATION_WORK_H

#include "cpu/blas_load.h"
#include "runtime/pass/route_observer.h"
#include "runtime/sidecar/affinity.h"
#include "runtime/sidecar/calibration_run.h"
#include "runtime/sidecar/calibration_state.h"

typedef enum moe_calibration_phase {
    MOE_CALIBRATE_TEXT,
    MOE_CALIBRATE_OUTPUTS,
    MOE_CALIBRATE_WEIGHTS,
} moe_calibration_phase;

struct moe_calibration_run {
    moe_calibration_parts parts;
    const moe_calibrate_options *options;
    moe_calibration_state *state;
    moe_route_observer observer;
    bool observes; /* the observer is attached */
    moe_blas blas;
    moe_weight_reader weights;
    uint64_t window_begin; /* the token at position 0 of the sequence */
    float *hidden;         /* [prefill_chunk][n_embd] */
    int32_t *tokens;
    char *path;
    char *partial;
    uint64_t saved_ns;
    double progress;   /* last reported */
    uint64_t asked_ns; /* ... then */
    bool is_spoilt;    /* a window was counted in part: the state must not be saved */
};

/* Whether the program wants to stop. user points to the run. Also called while waiting for
 * bytes. */
bool moe_calibration_is_cancelled(void *user);
/* Saves the unfinished work. */
int moe_calibration_save_partial(moe_calibration_run *run, moe_error *err);
/* Call between two pieces of work: reports progress, and saves when it is time. fraction: how
 * much of the phase is done, 0 to 1. */
int moe_calibration_checkpoint(moe_calibration_run *run, moe_calibration_phase phase,
                               double fraction, moe_error *err);

/* Run the second and the third phase. */
int moe_calibration_compare_outputs(moe_calibration_run *run, moe_error *err);
int moe_calibration_compare_weights(moe_calibration_run *run, moe_error *err);
/* Writes the sidecar from the finished state. */
int moe_calibration_write_sidecar(moe_calibration_run *run, moe_error *err);

#endif
