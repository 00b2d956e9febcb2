/* SPDX-License-Identifier: MIT */
/* The pass over a step's rows. */
#ifndef MOE_ENGINE_STEP_H
#define MOE_ENGINE_STEP_H

#include "runtime/engine/step_rows.h"

/* Prepares, runs the pass, and marks its rows as evaluated. */
int moe_step_run(moe_step_work *step, bool all_logits, moe_row_logits_fn on_logits, void *user,
                 moe_error *err);
/* An on_logits function, with the step for `user`: the sessions keep the logits, or their walks
 * continue. */
bool moe_step_keep_logits(uint32_t row, const float *logits, void *user);
/* Answers requests to cancel: removes those sessions from the list. Returns how many are left. */
size_t moe_step_leave_out_cancelled(moe_session **sessions, size_t n);

#endif
