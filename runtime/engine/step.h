/* SPDX-License-Identifier: MIT */
/* The pass over a step's rows. */
#ifndef MOE_ENGINE_STEP_H
#define MOE_ENGINE_STEP_H

#include "runtime/engine/step_rows.h"

/* Prepares and runs the pass, and marks its rows as evaluated; for a panel, carries out one chunk.
 */
int moe_step_run(moe_step_work *step, bool all_logits, moe_row_logits_fn on_logits, void *user,
                 moe_error *err);
/* Drafts, runs a pass over the next rows of the sessions, then samples. */
int moe_step_pass(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);
/* Marks the first n_rows rows of the engine's panel as evaluated, after they have been computed,
 * and ends the panel. */
int moe_step_take_panel(moe_engine *engine, uint32_t n_rows, moe_error *err);
/* Samples from each session that has nothing left to evaluate. Also when this step had nothing to
 * evaluate: a timeline cut back to its last logits continues from them. */
void moe_step_sample(const moe_step_work *step);
/* An on_logits function; user: the step. Stores the row's logits in its session, or continues the
 * walk through its token tree, and calls the session's watch function. */
bool moe_step_keep_logits(uint32_t row, const float *hidden, const float *logits, void *user);
/* Answers requests to cancel: removes those sessions from the list. Returns how many are left. */
size_t moe_step_leave_out_cancelled(moe_session **sessions, size_t n);

#endif
