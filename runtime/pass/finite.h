/* SPDX-License-Identifier: MIT */
/* Detects values that are NaN or infinite. The residual stream keeps them: whatever is added to
 * such a value, the sum is not finite either. A look at the last hidden states and the logits
 * therefore finds what went wrong in any layer, at the cost of one read of data at hand. To find
 * where it began, the pass runs again with a look after every operation. */
#ifndef MOE_PASS_FINITE_H
#define MOE_PASS_FINITE_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/pass/pass.h"

bool moe_all_finite(const float *x, size_t n);

/* Checks the hidden states of all of the pass's rows after its last layer. MOE_ERR_FORMAT, with the
 * place where it began, if one is not finite. Uses buffers->selected_host. */
int moe_pass_check_hidden(moe_runner *runner, const moe_pass *pass, moe_error *err);

/* Call when a row's result is not finite. Always fails, and names the first layer, and the
 * operation, where that is so. Runs the pass again, which writes the rows' keys and values as they
 * were. MOE_ERR_CANCELLED if the step is cancelled meanwhile. */
int moe_pass_fail_not_finite(moe_runner *runner, const moe_pass *pass, moe_error *err);

#endif
