/* SPDX-License-Identifier: MIT */
/* Mamba-1: projection -> short convolution -> time steps, k and q of what it put out -> selective
 * scan -> gate -> output. What follows the convolution is projected when states are advanced, so a
 * draft logs the convolution's input alone, and its ancestors are projected again. */
#include "runtime/pass/recurrent_forms.h"

#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

/* Rows of the projection: what is convolved, the output's gate. */
static int project(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    uint32_t n = runner->config->recurrence.conv_channels;
    moe_pass_buffers *b = &runner->buffers;
    const moe_weight *all = moe_layer_weight(runner, layer, MOE_LAYER_SCAN_IN);
    moe_linear linears[2] = {
        {moe_weight_rows(all, 0, n), NULL, b->mixed},
        {moe_weight_rows(all, n, n), NULL, b->delta_z},
    };
    return runner->device->ops->linear(runner->device, b->norm, n_rows, runner->config->n_embd,
                                       linears, 2, err);
}

static const float *floats_of(const moe_runner *runner, uint32_t layer, int tensor)
{
    return moe_layer_weight(runner, layer, tensor)->data;
}

/* The outputs of the convolution go to rows of the scratch. *n_tokens: of all sequences. */
static int convolve(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                    uint32_t n_sequences, uint32_t *n_tokens, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_delta_sequence inputs[MOE_MOST_STATE_SEQUENCES];
    MOE_ASSERT(n_sequences <= MOE_MOST_STATE_SEQUENCES);
    *n_tokens = 0;
    for (uint32_t i = 0; i < n_sequences; i++) {
        inputs[i] = sequences[i];
        inputs[i].n_silent = 0;
        inputs[i].out = runner->buffers.convolved + (size_t)*n_tokens * c->conv_channels;
        *n_tokens += sequences[i].n_tokens;
    }
    moe_short_conv conv = {.n = c->conv_channels,
                           .conv_kernel = c->conv_kernel,
                           .conv = floats_of(runner, layer, MOE_LAYER_SCAN_CONV),
                           .bias = floats_of(runner, layer, MOE_LAYER_SCAN_CONV_BIAS),
                           .silu = true,
                           .tail_at = (size_t)c->key_dim * c->value_dim,
                           .sequences = inputs,
                           .n_sequences = n_sequences};
    return runner->device->ops->short_conv(runner->device, &conv, err);
}

/* What a scan reads beside the convolution; each is [n_tokens][..]. */
typedef struct scan_parts {
    float *low, *k, *q, *dt;
} scan_parts;

static int norm_part(moe_runner *runner, uint32_t layer, int tensor, float *x, uint32_t n_rows,
                     uint32_t n, moe_error *err)
{
    return runner->device->ops->rms_norm(runner->device, x, floats_of(runner, layer, tensor), x,
                                         n_rows, n, n, runner->config->norm_eps, err);
}

static int project_parts(moe_runner *runner, uint32_t layer, uint32_t n_tokens, const scan_parts *p,
                         moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_device_ops *ops = runner->device->ops;
    const moe_weight *all = moe_layer_weight(runner, layer, MOE_LAYER_SCAN_X);
    uint32_t rank = c->step_rank, state = c->key_dim;
    moe_linear linears[3] = {
        {moe_weight_rows(all, 0, rank), NULL, p->low},
        {moe_weight_rows(all, rank, state), NULL, p->k},
        {moe_weight_rows(all, rank + state, state), NULL, p->q},
    };
    moe_linear steps = {*moe_layer_weight(runner, layer, MOE_LAYER_SCAN_STEP), NULL, p->dt};
    int status = ops->linear(runner->device, runner->buffers.convolved, n_tokens, c->conv_channels,
                             linears, 3, err);
    if (status == MOE_OK) {
        status = norm_part(runner, layer, MOE_LAYER_SCAN_STEP_NORM, p->low, n_tokens, rank, err);
    }
    if (status == MOE_OK) {
        status = norm_part(runner, layer, MOE_LAYER_SCAN_K_NORM, p->k, n_tokens, state, err);
    }
    if (status == MOE_OK) {
        status = norm_part(runner, layer, MOE_LAYER_SCAN_Q_NORM, p->q, n_tokens, state, err);
    }
    return status != MOE_OK ? status
                            : ops->linear(runner->device, p->low, n_tokens, rank, &steps, 1, err);
}

static int advance(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                   uint32_t n_sequences, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    uint32_t n_tokens;
    int status = convolve(runner, layer, sequences, n_sequences, &n_tokens, err);
    scan_parts p = {.dt = runner->buffers.delta_parts};
    p.low = p.dt + (size_t)n_tokens * c->conv_channels;
    p.k = p.low + (size_t)n_tokens * c->step_rank;
    p.q = p.k + (size_t)n_tokens * c->key_dim;
    if (status == MOE_OK) {
        status = project_parts(runner, layer, n_tokens, &p, err);
    }
    moe_selective_scan scan = {.n = c->conv_channels,
                               .n_rows = c->key_dim,
                               .decay = floats_of(runner, layer, MOE_LAYER_SCAN_DECAY),
                               .dt_bias = floats_of(runner, layer, MOE_LAYER_SCAN_STEP_BIAS),
                               .skip = floats_of(runner, layer, MOE_LAYER_SCAN_SKIP),
                               .v = runner->buffers.convolved,
                               .dt = p.dt,
                               .k = p.k,
                               .q = p.q,
                               .sequences = sequences,
                               .n_sequences = n_sequences};
    return status != MOE_OK ? status
                            : runner->device->ops->selective_scan(runner->device, &scan, err);
}

static int put_out(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    uint32_t n = runner->config->recurrence.conv_channels;
    moe_pass_buffers *b = &runner->buffers;
    moe_gating gating = {.kind = MOE_GATING_SILU,
                         .gate = b->delta_z,
                         .gate_stride = n,
                         .x = b->delta_out,
                         .x_stride = n,
                         .n = n};
    int status = runner->device->ops->gate(runner->device, &gating, n_rows, err);
    moe_linear out = {*moe_layer_weight(runner, layer, MOE_LAYER_SCAN_OUT), NULL, b->branch};
    return status != MOE_OK
               ? status
               : runner->device->ops->linear(runner->device, b->delta_out, n_rows, n, &out, 1, err);
}

const moe_recurrent_form moe_recurrent_scan = {project, advance, put_out};
