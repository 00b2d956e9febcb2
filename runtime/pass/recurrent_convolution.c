/* SPDX-License-Identifier: MIT */
/* A short convolution between two gates: the projection has rows [B | C | x], and the layer adds
 * projection(C * convolution(B * x)). */
#include "runtime/pass/recurrent_forms.h"

#include "runtime/pass/runner.h"

static int gate_by(moe_runner *runner, float *x, const float *gate, uint32_t n_rows, moe_error *err)
{
    uint32_t n = runner->config->recurrence.conv_channels;
    moe_gating gating = {
        .kind = MOE_GATING_PLAIN, .gate = gate, .gate_stride = n, .x = x, .x_stride = n, .n = n};
    return runner->device->ops->gate(runner->device, &gating, n_rows, err);
}

static int project(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n = runner->config->recurrence.conv_channels;
    const moe_weight *all = moe_layer_weight(runner, layer, MOE_LAYER_CONV_IN);
    moe_linear linears[3] = {
        {moe_weight_rows(all, 0, n), NULL, b->delta_parts},
        {moe_weight_rows(all, n, n), NULL, b->delta_z},
        {moe_weight_rows(all, 2 * n, n), NULL, b->mixed},
    };
    int status = runner->device->ops->linear(runner->device, b->norm, n_rows,
                                             runner->config->n_embd, linears, 3, err);
    return status != MOE_OK ? status : gate_by(runner, b->mixed, b->delta_parts, n_rows, err);
}

static int advance(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                   uint32_t n_sequences, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_short_conv conv = {.n = c->conv_channels,
                           .conv_kernel = c->conv_kernel,
                           .conv = moe_layer_weight(runner, layer, MOE_LAYER_CONV_TAPS)->data,
                           .sequences = sequences,
                           .n_sequences = n_sequences};
    return runner->device->ops->short_conv(runner->device, &conv, err);
}

static int put_out(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n = runner->config->recurrence.conv_channels;
    int status = gate_by(runner, b->delta_out, b->delta_z, n_rows, err);
    moe_linear out = {*moe_layer_weight(runner, layer, MOE_LAYER_CONV_OUT), NULL, b->branch};
    return status != MOE_OK
               ? status
               : runner->device->ops->linear(runner->device, b->delta_out, n_rows, n, &out, 1, err);
}

const moe_recurrent_form moe_recurrent_convolution = {project, advance, put_out};
