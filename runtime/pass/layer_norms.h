/* SPDX-License-Identifier: MIT */
/* Norms of whole rows, of the kind that the model has. */
#ifndef MOE_PASS_LAYER_NORMS_H
#define MOE_PASS_LAYER_NORMS_H

#include "runtime/pass/runner.h"

static inline int moe_norm_rows(moe_runner *runner, const float *weight, const float *bias,
                                const float *x, float *y, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_device_ops *ops = runner->device->ops;
    return c->norm == MOE_NORM_MEAN ? ops->layer_norm(runner->device, x, weight, bias, y, n_rows,
                                                      c->n_embd, c->n_embd, c->norm_eps, err)
                                    : ops->rms_norm(runner->device, x, weight, y, n_rows, c->n_embd,
                                                    c->n_embd, c->norm_eps, err);
}

/* y = norm of x by a tensor of the layer (MOE_LAYER_*_NORM), rows of n_embd; in place if y is x. */
static inline int moe_norm_embedding(moe_runner *runner, uint32_t layer, int tensor, const float *x,
                                     float *y, uint32_t n_rows, moe_error *err)
{
    int bias = tensor == MOE_LAYER_ATTN_NORM  ? MOE_LAYER_ATTN_NORM_BIAS
               : tensor == MOE_LAYER_FFN_NORM ? MOE_LAYER_FFN_NORM_BIAS
                                              : -1;
    return moe_norm_rows(runner, moe_layer_weight(runner, layer, tensor)->data,
                         bias >= 0 ? moe_layer_weight(runner, layer, bias)->data : NULL, x, y,
                         n_rows, err);
}

/* The norm before the head. */
static inline int moe_norm_output(moe_runner *runner, const float *x, float *y, uint32_t n_rows,
                                  moe_error *err)
{
    const moe_weights *w = runner->weights;
    return moe_norm_rows(runner, w->output_norm.data, w->output_norm_bias.data, x, y, n_rows, err);
}

#endif
