/* SPDX-License-Identifier: MIT */
/* Values that are no numbers (NaN) or infinite. The residual stream keeps them: whatever is added
 * to one stays one. So a look at the last hidden states and at the logits finds what went wrong in
 * any layer, and costs a read of what is at hand. Where it began is found by making the pass again
 * with a look after every block. */
#ifndef MOE_PASS_FINITE_H
#define MOE_PASS_FINITE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/pass/pass.h"

bool moe_all_finite(const float *x, size_t n);

/* Looks at the hidden states of all of the pass's rows, after its last layer: MOE_ERR_FORMAT, which
 * names where it began, when one has no number. Uses buffers->selected_host. */
int moe_pass_check_hidden(moe_runner *runner, const moe_pass *pass, moe_error *err);

/* What the pass of a row gave is no number: always fails, with the first layer where that is so.
 * Makes the pass again: the rows' keys and values are written as they were. MOE_ERR_CANCELLED when
 * the step is cancelled meanwhile. */
int moe_pass_fail_not_finite(moe_runner *runner, const moe_pass *pass, moe_error *err);

#endif
