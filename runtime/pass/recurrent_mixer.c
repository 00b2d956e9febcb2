/* SPDX-License-Identifier: MIT */
/* projections -> short convolution -> gated delta rule -> norm -> gate -> output.
 *
 * The device takes the tokens of each sequence in order, and a token's work on the state does not
 * depend on its neighbours in the pass, so that chunks of a prompt change no bit.
 *
 * A pass that logs (moe_state_run) keeps what the rule needs of each row: the row before the
 * convolution, and its gates. Ancestors of a draft are taken from the log, without output. */
#include "runtime/pass/recurrent_mixer.h"

#include "cpu/kernels/delta_rule.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

_Static_assert(MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_KEY_DIM &&
                   MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_VALUE_DIM &&
                   MOE_RECURRENCE_MAX_KERNEL <= MOE_DELTA_MAX_TAPS,
               "kernels take what configs may have");

/* Sequences of one call to the device. */
#define MAX_SEQUENCES 32u

static size_t inner_of(const moe_recurrence *c)
{
    return (size_t)c->n_head * c->value_dim;
}

/* ---- Projections ---- */

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

/* ---- The rule ---- */

static moe_delta_rule rule_of(moe_runner *runner, uint32_t layer)
{
    const moe_recurrence *c = &runner->config->recurrence;
    return (moe_delta_rule){
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
    };
}

static const float *state_at(const void *state, const moe_state_layout *at)
{
    return state == NULL ? NULL : (const float *)((const uint8_t *)state + at->offset);
}

static float *log_row(const moe_state_run *run, const moe_state_layout *at, uint32_t row)
{
    return (float *)((uint8_t *)run->log + at->log_offset + row * at->row_bytes);
}

/* Logged rows of a run as the device takes them. */
static moe_delta_sequence logged_rows(const moe_runner *runner, const moe_state_run *run,
                                      const moe_state_layout *at, uint32_t n_rows)
{
    const float *first = log_row(run, at, 0);
    return (moe_delta_sequence){.mixed = first,
                                .mixed_stride = at->row_bytes / sizeof(float),
                                .gates = first + runner->config->recurrence.conv_channels,
                                .gates_stride = at->row_bytes / sizeof(float),
                                .n_tokens = n_rows,
                                .from = state_at(run->from, at),
                                .to = (float *)state_at(run->to, at)};
}

static int log_rows(moe_runner *runner, const moe_state_run *run, const moe_state_layout *at,
                    moe_error *err)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    float *out = log_row(run, at, run->n_logged);
    size_t stride = at->row_bytes / sizeof(float);
    int status =
        device->ops->copy_rows(device, b->mixed + (size_t)run->first_row * c->conv_channels,
                               c->conv_channels, out, stride, c->conv_channels, run->n_rows, err);
    return status != MOE_OK
               ? status
               : device->ops->copy_rows(
                     device, b->delta_gates + (size_t)run->first_row * c->n_gates, c->n_gates,
                     out + c->conv_channels, stride, c->n_gates, run->n_rows, err);
}

/* One run of the pass; its rows' inputs are in the buffers, and in the log if it has one. */
static moe_delta_sequence rows_of_run(const moe_runner *runner, const moe_state_run *run,
                                      const moe_state_layout *at)
{
    const moe_recurrence *c = &runner->config->recurrence;
    const moe_pass_buffers *b = &runner->buffers;
    moe_delta_sequence s;
    if (run->log != NULL) {
        s = logged_rows(runner, run, at, run->n_logged + run->n_rows);
    } else {
        s = (moe_delta_sequence){.mixed = b->mixed + (size_t)run->first_row * c->conv_channels,
                                 .mixed_stride = c->conv_channels,
                                 .gates = b->delta_gates + (size_t)run->first_row * c->n_gates,
                                 .gates_stride = c->n_gates,
                                 .n_tokens = run->n_rows,
                                 .from = state_at(run->from, at),
                                 .to = (float *)state_at(run->to, at)};
    }
    s.n_silent = run->n_logged;
    s.out = b->delta_out + run->first_row * inner_of(c);
    return s;
}

/* Takes the runs together, as many as the scratch has room for. */
static int run_rule(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_state_layout *at = &runner->states->layers[layer];
    moe_delta_sequence sequences[MAX_SEQUENCES];
    moe_delta_rule rule = rule_of(runner, layer);
    size_t most = moe_delta_scratch_rows(&runner->buffers);
    size_t n_tokens = 0;
    rule.sequences = sequences;
    int status = MOE_OK;
    for (uint32_t i = 0; i < pass->n_state_runs && status == MOE_OK; i++) {
        const moe_state_run *run = &pass->state_runs[i];
        if (run->log != NULL) {
            status = log_rows(runner, run, at, err);
        }
        moe_delta_sequence s = rows_of_run(runner, run, at);
        bool full = rule.n_sequences == MAX_SEQUENCES || n_tokens + s.n_tokens > most;
        if (status == MOE_OK && full && rule.n_sequences > 0) {
            status = runner->device->ops->delta_rule(runner->device, &rule, err);
            rule.n_sequences = 0;
            n_tokens = 0;
        }
        MOE_ASSERT(s.n_tokens <= most);
        sequences[rule.n_sequences++] = s;
        n_tokens += s.n_tokens;
    }
    return status == MOE_OK && rule.n_sequences > 0
               ? runner->device->ops->delta_rule(runner->device, &rule, err)
               : status;
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

int moe_mix_recurrent(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = project_mixed(runner, layer, pass->n_rows, err);
    if (status == MOE_OK) {
        status = project_gates(runner, layer, pass->n_rows, err);
    }
    if (status == MOE_OK) {
        status = run_rule(runner, pass, layer, err);
    }
    return status != MOE_OK ? status : put_out(runner, layer, pass->n_rows, err);
}

int moe_advance_recurrent(moe_runner *runner, const moe_state_run *run, uint32_t layer,
                          moe_error *err)
{
    moe_delta_rule rule = rule_of(runner, layer);
    moe_delta_sequence s = logged_rows(runner, run, &runner->states->layers[layer], run->n_rows);
    s.n_silent = s.n_tokens;
    rule.sequences = &s;
    rule.n_sequences = 1;
    return runner->device->ops->delta_rule(runner->device, &rule, err);
}
