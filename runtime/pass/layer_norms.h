/* SPDX-License-Identifier: MIT */
/* Norms of whole rows, of the kind that the model has. */
#ifndef MOE_PASS_LAYER_NORMS_H
#define MOE_PASS_LAYER_NORMS_H

#include "runtime/pass/runner.h"

/* y = norm of x by a tensor of the layer (MOE_LAYER_*_NORM), rows of n_embd; in place if y is x. */
int moe_norm_embedding(moe_runner *runner, uint32_t layer, int tensor, const float *x, float *y,
                       uint32_t n_rows, moe_error *err);
/* The norm before the head. */
int moe_norm_output(moe_runner *runner, const float *x, float *y, uint32_t n_rows, moe_error *err);

#endif
