/* SPDX-License-Identifier: MIT */
/* A calibration in three phases, each of which can be interrupted and continued:
 *
 *  the text, in windows   -> counts, co-activation, entropies, samples of hidden rows, Gram
 *  every expert on the samples of its layer   -> distances of outputs
 *  the file, layer by layer                   -> distances of weights, checksums
 *
 * Then the sidecar is written, and beside it low-bit copies of the experts (low_bit_file.h). The
 * caller evaluates the windows of the text: open, then next_window, evaluate and counted until *n
 * is 0, then finish; close in any case. */
#ifndef MOE_SIDECAR_CALIBRATION_RUN_H
#define MOE_SIDECAR_CALIBRATION_RUN_H

#include <moe/calibrate.h>

#include "offload/mover.h"
#include "runtime/host/team.h"
#include "runtime/pass/pass.h"
#include "runtime/sidecar/model_sidecar.h"

typedef struct moe_calibration_run moe_calibration_run;

typedef struct moe_calibration_parts {
    moe_sidecar_model model;
    moe_team *team;     /* makes the low-bit copies, if the options ask for them */
    moe_runner *runner; /* an observer is attached to it while the run is open */
    uint32_t context;
    uint32_t prefill_chunk;
} moe_calibration_parts;

/* Opens a calibration. Loads unfinished work on the same text with the same settings, if there is
 * any. The options must outlive the run. Close *out also after an error. */
int moe_calibration_run_open(moe_calibration_run **out, const moe_calibration_parts *parts,
                             const moe_calibrate_options *options, moe_error *err);
/* Returns the tokens to evaluate next, as a new sequence from position 0 on. *n is 0 when the
 * text is finished. */
const int32_t *moe_calibration_run_next_window(moe_calibration_run *run, uint32_t *n);
/* Call when the n tokens of the window have been evaluated. Reports progress, and saves the work
 * from time to time. */
int moe_calibration_run_counted(moe_calibration_run *run, uint32_t n, moe_error *err);
/* Returns the function by which passes that evaluate a window learn that the program wants to
 * stop. */
moe_wait_cancel moe_calibration_run_cancel(moe_calibration_run *run);
/* Runs the remaining phases, and writes the sidecar. */
int moe_calibration_run_finish(moe_calibration_run *run, moe_error *err);
/* status: the last result of the calls above. Saves the work so far after MOE_ERR_CANCELLED.
 * Returns the status of the whole run. */
int moe_calibration_run_close(moe_calibration_run **run, int status, moe_error *err);

#endif
