/* SPDX-License-Identifier: MIT */
/* The gated delta rule: projections -> short convolution -> rule -> norm -> gate -> output. */
#include "runtime/pass/recurrent_forms.h"

#include "runtime/pass/runner.h"

static size_t inner_of(const moe_recurrence *c)
{
    return moe_recurrence_out_floats(c);
}

/* Copies n columns from column `from` of the parts to column `to` of rows of `stride`. */
static int copy_part(moe_runner *runner, size_t part_stride, size_t from, float *out,
                     size_t out_stride, size_t to, uint32_t n, uint32_t n_rows, moe_error *err)
{
    return runner->device->ops->copy_rows(runner->device, runner->buffers.delta_parts + from,
                                          part_stride, out + to, out_stride, n, n_rows, err);
}

/* From the older files' order (for each key head its query, its key, its heads' values, their
 * gates) to mixed and z. */
static int split_groups(moe_runner *runner, uint32_t n_rows, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_pass_buffers *b = &runner->buffers;
    uint32_t values = c->n_head / c->n_key_head * c->value_dim;
    size_t keys = (size_t)c->n_key_head * c->key_dim;
    size_t stride = c->conv_channels + inner_of(c);
    int status = MOE_OK;
    for (uint32_t h = 0; h < c->n_key_head && status == MOE_OK; h++) {
        size_t at = (size_t)h * (2 * c->key_dim + 2 * values);
        size_t key = (size_t)h * c->key_dim;
        size_t value = (size_t)h * values;
        const struct {
            size_t from;
            float *out;
            size_t stride, to;
            uint32_t n;
        } parts[] = {
            {at, b->mixed, c->conv_channels, key, c->key_dim},
            {at + c->key_dim, b->mixed, c->conv_channels, keys + key, c->key_dim},
            {at + 2 * c->key_dim, b->mixed, c->conv_channels, 2 * keys + value, values},
            {at + 2 * c->key_dim + values, b->delta_z, inner_of(c), value, values},
        };
        for (uint32_t p = 0; p < 4 && status == MOE_OK; p++) {
            status = copy_part(runner, stride, parts[p].from, parts[p].out, parts[p].stride,
                               parts[p].to, parts[p].n, n_rows, err);
        }
    }
    return status;
}

static int project_mixed(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    if (c->recurrence.in_groups) {
        moe_linear all = {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_QKV), NULL,
                          b->delta_parts};
        int status = device->ops->linear(device, b->norm, n_rows, c->n_embd, &all, 1, err);
        return status != MOE_OK ? status : split_groups(runner, n_rows, err);
    }
    moe_linear linears[2] = {
        {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_QKV), NULL, b->mixed},
        {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_Z), NULL, b->delta_z},
    };
    return device->ops->linear(device, b->norm, n_rows, c->n_embd, linears, 2, err);
}

/* Rows of [beta of all heads | alpha of all heads], or of both for each key head. */
static int project_gates(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    uint32_t n = c->recurrence.n_head;
    if (!c->recurrence.tiled) {
        moe_linear both = {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_BA), NULL,
                           b->delta_gates};
        return device->ops->linear(device, b->norm, n_rows, c->n_embd, &both, 1, err);
    }
    size_t alphas = (size_t)n_rows * n;
    moe_linear linears[2] = {
        {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_BETA), NULL, b->delta_parts},
        {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_ALPHA), NULL, b->delta_parts + alphas},
    };
    int status = device->ops->linear(device, b->norm, n_rows, c->n_embd, linears, 2, err);
    if (status == MOE_OK) {
        status = copy_part(runner, n, 0, b->delta_gates, 2 * (size_t)n, 0, n, n_rows, err);
    }
    return status != MOE_OK
               ? status
               : copy_part(runner, n, alphas, b->delta_gates, 2 * (size_t)n, n, n, n_rows, err);
}

static int project(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    int status = project_mixed(runner, layer, n_rows, err);
    return status != MOE_OK ? status : project_gates(runner, layer, n_rows, err);
}

static int advance(moe_runner *runner, uint32_t layer, const moe_delta_sequence *sequences,
                   uint32_t n_sequences, moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_delta_rule rule = {
        .n_head = c->n_head,
        .n_key_head = c->n_key_head,
        .key_dim = c->key_dim,
        .value_dim = c->value_dim,
        .conv_kernel = c->conv_kernel,
        .tiled = c->tiled,
        .gate_group = c->tiled ? c->n_head : c->n_head / c->n_key_head,
        .conv = moe_layer_weight(runner, layer, MOE_LAYER_DELTA_CONV)->data,
        .decay = moe_layer_weight(runner, layer, MOE_LAYER_DELTA_DECAY)->data,
        .dt_bias = moe_layer_weight(runner, layer, MOE_LAYER_DELTA_DT_BIAS)->data,
        .convolved = runner->buffers.convolved,
        .sequences = sequences,
        .n_sequences = n_sequences,
    };
    return runner->device->ops->delta_rule(runner->device, &rule, err);
}

static int put_out(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_recurrence *r = &c->recurrence;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    uint32_t n_heads = n_rows * r->n_head;
    int status = device->ops->rms_norm(
        device, b->delta_out, moe_layer_weight(runner, layer, MOE_LAYER_DELTA_NORM)->data,
        b->delta_out, n_heads, r->value_dim, r->value_dim, c->norm_eps, err);
    if (status == MOE_OK) {
        moe_gating gating = {.kind = MOE_GATING_SILU,
                             .gate = b->delta_z,
                             .gate_stride = inner_of(r),
                             .x = b->delta_out,
                             .x_stride = inner_of(r),
                             .n = (uint32_t)inner_of(r)};
        status = device->ops->gate(device, &gating, n_rows, err);
    }
    if (status == MOE_OK) {
        moe_linear out = {*moe_layer_weight(runner, layer, MOE_LAYER_DELTA_OUT), NULL, b->branch};
        status =
            device->ops->linear(device, b->delta_out, n_rows, (uint32_t)inner_of(r), &out, 1, err);
    }
    return status;
}

const moe_recurrent_form moe_recurrent_delta = {project, advance, put_out};
