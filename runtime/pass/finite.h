/* SPDX-License-Identifier: MIT */
/* Detects values that are NaN or infinite. The residual stream keeps them, because a sum with such
 * a value is not finite either. So checking the last hidden states and the logits finds a fault of
 * any layer, and costs one read of data at hand. To find where it began, the pass runs again with a
 * check after every operation. */
#ifndef MOE_PASS_FINITE_H
#define MOE_PASS_FINITE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/pass/pass.h"

bool moe_all_finite(const float *x, size_t n);

/* Checks the hidden states of all rows of the pass after its last layer. MOE_ERR_FORMAT, with the
 * place where the fault began, if one is not finite. Uses buffers->selected_host. */
int moe_pass_check_hidden(moe_runner *runner, const moe_pass *pass, moe_error *err);

/* Call when a row's result is not finite. Always fails, and names the first layer and operation
 * whose result is not finite. Runs the pass again, which writes the same keys and values of the
 * rows. MOE_ERR_CANCELLED if the step is cancelled meanwhile. */
int moe_pass_fail_not_finite(moe_runner *runner, const moe_pass *pass, moe_error *err);

#endif
