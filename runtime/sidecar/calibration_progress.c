/* SPDX-License-Identifier: MIT */
/* For all phases of a calibration: reports progress, asks whether to stop, and saves unfinished
 * work. */
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/sidecar/calibration_work.h"

#define DEFAULT_SAVE_INTERVAL_S 30.0
#define ASK_NS                  50000000u /* between two questions to the program during a wait */

/* The share of the whole work at which each phase begins, for the progress report. */
static const double phase_begin[] = {0.0, 0.6, 0.8, 0.95};

int moe_calibration_save_partial(moe_calibration_run *run, moe_error *err)
{
    int status = moe_calibration_state_save(run->state, run->partial, err);
    run->saved_ns = moe_now_ns();
    return status;
}

bool moe_calibration_is_cancelled(void *user)
{
    moe_calibration_run *run = user;
    const moe_calibrate_options *o = run->options;
    uint64_t now = moe_now_ns();
    if (now - run->asked_ns < ASK_NS) {
        return false;
    }
    run->asked_ns = now;
    return o->progress != NULL && !o->progress(run->progress, o->user);
}

int moe_calibration_checkpoint(moe_calibration_run *run, moe_calibration_phase phase,
                               double fraction, moe_error *err)
{
    const moe_calibrate_options *o = run->options;
    double begin = phase_begin[phase];
    double total = begin + fraction * (phase_begin[phase + 1] - begin);
    run->progress = total;
    run->asked_ns = 0;
    if (moe_calibration_is_cancelled(run)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "cancelled");
    }
    double interval_s = o->save_interval_s > 0.0 ? o->save_interval_s : DEFAULT_SAVE_INTERVAL_S;
    bool is_time = (double)(moe_now_ns() - run->saved_ns) * 1e-9 >= interval_s;
    return is_time ? moe_calibration_save_partial(run, err) : MOE_OK;
}
