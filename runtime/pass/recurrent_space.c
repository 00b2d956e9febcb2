/* SPDX-License-Identifier: MIT */
/* Mamba-2: projection -> short convolution -> state space -> gate -> norm of each group -> output.
 */
#include "runtime/pass/recurrent_forms.h"

#include "runtime/pass/runner.h"

/* Rows of the projection: the output's gate, what is convolved, time steps. */
static int project(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_pass_buffers *b = &runner->buffers;
    const moe_weight *all = moe_layer_weight(runner, layer, MOE_LAYER_SPACE_IN);
    uint32_t inner = (uint32_t)moe_recurrence_out_floats(c);
    moe_linear linears[3] = {
        {moe_weight_rows(all, 0, inner), NULL, b->delta_z},
        {moe_weight_rows(all, inner, c->conv_channels), NULL, b->mixed},
        {moe_weight_rows(all, inner + c->conv_channels, c->n_head), NULL, b->delta_gates},
    };
    return runner->device->ops->linear(runner->device, b->norm, n_rows, runner->config->n_embd,
                                       linears, 3, err);
}

static const float *floats_of(const moe_runner *runner, uint32_t layer, int tensor)
{
    return moe_layer_weight(runner, layer, tensor)->data;
}

static int advance(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                   uint32_t n_sequences, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_state_space space = {.n_head = c->n_head,
                             .n_group = c->n_key_head,
                             .key_dim = c->key_dim,
                             .value_dim = c->value_dim,
                             .conv_kernel = c->conv_kernel,
                             .conv = floats_of(runner, layer, MOE_LAYER_DELTA_CONV),
                             .conv_bias = floats_of(runner, layer, MOE_LAYER_SPACE_CONV_BIAS),
                             .decay = floats_of(runner, layer, MOE_LAYER_SPACE_DECAY),
                             .dt_bias = floats_of(runner, layer, MOE_LAYER_DELTA_DT_BIAS),
                             .skip = floats_of(runner, layer, MOE_LAYER_SPACE_SKIP),
                             .convolved = runner->buffers.convolved,
                             .sequences = sequences,
                             .n_sequences = n_sequences};
    return runner->device->ops->state_space(runner->device, &space, err);
}

static int put_out(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_device_ops *ops = runner->device->ops;
    moe_pass_buffers *b = &runner->buffers;
    size_t inner = moe_recurrence_out_floats(c);
    uint32_t width = (uint32_t)inner / c->n_key_head;
    const float *norm = floats_of(runner, layer, MOE_LAYER_SPACE_NORM);
    moe_gating gating = {.kind = MOE_GATING_SILU,
                         .gate = b->delta_z,
                         .gate_stride = inner,
                         .x = b->delta_out,
                         .x_stride = inner,
                         .n = (uint32_t)inner};
    int status = ops->gate(runner->device, &gating, n_rows, err);
    for (uint32_t g = 0; g < c->n_key_head && status == MOE_OK; g++) {
        float *x = b->delta_out + (size_t)g * width;
        status = ops->rms_norm(runner->device, x, norm + (size_t)g * width, x, n_rows, width, inner,
                               runner->config->norm_eps, err);
    }
    moe_linear out = {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_OUT), NULL, b->branch};
    return status != MOE_OK
               ? status
               : ops->linear(runner->device, b->delta_out, n_rows, (uint32_t)inner, &out, 1, err);
}

const moe_recurrent_form moe_recurrent_space = {project, advance, put_out};
