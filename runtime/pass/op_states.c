/* SPDX-License-Identifier: MIT */
/* Layers with a state. STATES advances the states of a pass's sequences: the operations behind it
 * are carried out for all their tokens together, as many sequences as the scratch has room for.
 *
 * The device takes the tokens of each sequence in order, and a token's work on the state does not
 * depend on its neighbours in the pass, so that chunks of a prompt change no bit.
 *
 * A pass that logs (moe_state_run) keeps for each row what is needed to advance the state by it:
 * the row before the convolution, and its gates. A draft's ancestors are taken from the log,
 * without output. */
#include "runtime/pass/program_run.h"

#include "cpu/kernels/delta_rule.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

_Static_assert(MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_KEY_DIM &&
                   MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_VALUE_DIM &&
                   MOE_RECURRENCE_MAX_KERNEL <= MOE_DELTA_MAX_TAPS,
               "kernels take what configs may have");

/* Sequences that are advanced together, at most. */
#define MOST_SEQUENCES 32u

static const float *state_at(const void *state, const moe_state_layout *at)
{
    return state == NULL ? NULL : (const float *)((const uint8_t *)state + at->offset);
}

static float *log_row(const moe_state_run *run, const moe_state_layout *at, uint32_t row)
{
    row += run->log_first;
    return (float *)((uint8_t *)run->log + at->log_offset + row * at->row_bytes);
}

/* NULL: advancing a state needs `mixed` alone. */
static const float *gates_of(const moe_runner *runner, uint32_t row)
{
    const uint32_t n = runner->config->recurrence.n_gates;
    return n > 0 ? runner->buffers.values[MOE_VALUE_STATE_GATES] + (size_t)row * n : NULL;
}

static const float *mixed_of(const moe_runner *runner, uint32_t row)
{
    return runner->buffers.values[MOE_VALUE_MIXED] +
           (size_t)row * runner->config->recurrence.conv_channels;
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
    moe_device *device = runner->device;
    float *out = log_row(run, at, run->n_logged);
    size_t stride = at->row_bytes / sizeof(float);
    int status = device->ops->copy_rows(device, mixed_of(runner, run->first_row), c->conv_channels,
                                        out, stride, c->conv_channels, run->n_rows, err);
    return status != MOE_OK || c->n_gates == 0
               ? status
               : device->ops->copy_rows(device, gates_of(runner, run->first_row), c->n_gates,
                                        out + c->conv_channels, stride, c->n_gates, run->n_rows,
                                        err);
}

/* The rows of one run of the pass; their inputs are in the buffers, and in the log if the run has
 * one. */
static moe_delta_sequence rows_of_run(const moe_runner *runner, const moe_state_run *run,
                                      const moe_state_layout *at)
{
    const moe_recurrence *c = &runner->config->recurrence;
    moe_delta_sequence s;
    if (run->log != NULL) {
        s = logged_rows(runner, run, at, run->n_logged + run->n_rows);
    } else {
        s = (moe_delta_sequence){.mixed = mixed_of(runner, run->first_row),
                                 .mixed_stride = c->conv_channels,
                                 .gates = gates_of(runner, run->first_row),
                                 .gates_stride = c->n_gates,
                                 .n_tokens = run->n_rows,
                                 .from = state_at(run->from, at),
                                 .to = (float *)state_at(run->to, at)};
    }
    s.n_silent = run->n_logged;
    s.out =
        runner->buffers.values[MOE_VALUE_STATE_OUT] + run->first_row * moe_recurrence_out_floats(c);
    return s;
}

static int advance(const moe_run *pass_run, const moe_op *op, const moe_delta_sequence *sequences,
                   uint32_t n, uint32_t n_tokens, moe_error *err)
{
    const uint32_t first = (uint32_t)(op - pass_run->runner->program->ops) + 1;
    moe_run run = *pass_run;
    run.n_rows = n_tokens;
    run.sequences = sequences;
    run.n_sequences = n;
    return moe_program_run(&run, (moe_span){first, first + op->u.n_step}, err);
}

int moe_op_states(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_pass *pass = run->pass;
    const moe_state_layout *at = &run->runner->states->layers[run->layer];
    moe_delta_sequence sequences[MOST_SEQUENCES];
    size_t most = moe_delta_scratch_rows(&run->runner->buffers);
    size_t n_tokens = 0;
    uint32_t n = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < pass->n_state_runs && status == MOE_OK; i++) {
        const moe_state_run *of = &pass->state_runs[i];
        if (of->log != NULL) {
            status = log_rows(run->runner, of, at, err);
        }
        moe_delta_sequence s = rows_of_run(run->runner, of, at);
        bool full = n == MOST_SEQUENCES || n_tokens + s.n_tokens > most;
        if (status == MOE_OK && full && n > 0) {
            status = advance(run, op, sequences, n, (uint32_t)n_tokens, err);
            n = 0;
            n_tokens = 0;
        }
        MOE_ASSERT(s.n_tokens <= most);
        sequences[n++] = s;
        n_tokens += s.n_tokens;
    }
    return status == MOE_OK && n > 0 ? advance(run, op, sequences, n, (uint32_t)n_tokens, err)
                                     : status;
}

static int advance_logged(moe_runner *runner, const moe_op *op, const moe_state_run *of,
                          uint32_t layer, moe_error *err)
{
    const moe_run run = {.runner = runner};
    moe_delta_sequence s = logged_rows(runner, of, &runner->states->layers[layer], of->n_rows);
    s.n_silent = s.n_tokens;
    return advance(&run, op, &s, 1, s.n_tokens, err);
}

int moe_advance_states(moe_runner *runner, const moe_state_run *run, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    for (uint32_t i = l->first; i < l->mixed; i++) {
        const moe_op *op = &runner->program->ops[i];
        MOE_TRY(op->kind == MOE_OP_STATES ? advance_logged(runner, op, run, layer, err) : MOE_OK);
    }
    return MOE_OK;
}

/* ---- What advances them ---- */

static const float *floats_of(const moe_run *run, int tensor)
{
    return moe_op_weight(run, tensor)->data;
}

/* Writes to the sequences' outputs or, for all tokens, to rows of the scratch. */
int moe_op_convolve(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_recurrence *c = &run->runner->config->recurrence;
    moe_delta_sequence inputs[MOST_SEQUENCES];
    const bool scratch = op->y.value != MOE_VALUE_NONE;
    size_t n_tokens = 0;
    MOE_ASSERT(run->n_sequences <= MOST_SEQUENCES);
    for (uint32_t i = 0; i < run->n_sequences && scratch; i++) {
        inputs[i] = run->sequences[i];
        inputs[i].n_silent = 0;
        inputs[i].out = run->runner->buffers.values[op->y.value] + n_tokens * c->conv_channels;
        n_tokens += inputs[i].n_tokens;
    }
    moe_short_conv conv = {.n = c->conv_channels,
                           .conv_kernel = c->conv_kernel,
                           .conv = floats_of(run, op->tensor),
                           .bias = floats_of(run, op->bias),
                           .silu = scratch,
                           .tail_at = scratch ? (size_t)c->key_dim * c->value_dim : 0,
                           .sequences = scratch ? inputs : run->sequences,
                           .n_sequences = run->n_sequences};
    return run->runner->device->ops->short_conv(run->runner->device, &conv, err);
}

int moe_op_delta_rule(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_recurrence *c = &run->runner->config->recurrence;
    moe_delta_rule rule = {
        .n_head = c->n_head,
        .n_key_head = c->n_key_head,
        .key_dim = c->key_dim,
        .value_dim = c->value_dim,
        .conv_kernel = c->conv_kernel,
        .tiled = c->tiled,
        .gate_group = c->tiled ? c->n_head : c->n_head / c->n_key_head,
        .conv = floats_of(run, op->tensor),
        .decay = floats_of(run, MOE_LAYER_DELTA_DECAY),
        .dt_bias = floats_of(run, MOE_LAYER_DELTA_DT_BIAS),
        .convolved = run->runner->buffers.values[MOE_VALUE_CONVOLVED],
        .sequences = run->sequences,
        .n_sequences = run->n_sequences,
    };
    return run->runner->device->ops->delta_rule(run->runner->device, &rule, err);
}

int moe_op_state_space(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_recurrence *c = &run->runner->config->recurrence;
    moe_state_space space = {.n_head = c->n_head,
                             .n_group = c->n_key_head,
                             .key_dim = c->key_dim,
                             .value_dim = c->value_dim,
                             .conv_kernel = c->conv_kernel,
                             .conv = floats_of(run, op->tensor),
                             .conv_bias = floats_of(run, op->bias),
                             .decay = floats_of(run, MOE_LAYER_SPACE_DECAY),
                             .dt_bias = floats_of(run, MOE_LAYER_DELTA_DT_BIAS),
                             .skip = floats_of(run, MOE_LAYER_SPACE_SKIP),
                             .convolved = run->runner->buffers.values[MOE_VALUE_CONVOLVED],
                             .sequences = run->sequences,
                             .n_sequences = run->n_sequences};
    return run->runner->device->ops->state_space(run->runner->device, &space, err);
}

int moe_op_channel_rule(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_recurrence *c = &run->runner->config->recurrence;
    moe_channel_rule rule = {
        .n_head = c->n_head,
        .dim = c->key_dim,
        .conv_kernel = c->conv_kernel,
        .conv = {floats_of(run, op->tensor), floats_of(run, MOE_LAYER_CHANNEL_CONV_K),
                 floats_of(run, MOE_LAYER_CHANNEL_CONV_V)},
        .decay = floats_of(run, MOE_LAYER_CHANNEL_DECAY),
        .decay_bound = op->factor,
        .dt_bias = floats_of(run, MOE_LAYER_CHANNEL_DT_BIAS),
        .convolved = run->runner->buffers.values[MOE_VALUE_CONVOLVED],
        .sequences = run->sequences,
        .n_sequences = run->n_sequences,
    };
    return run->runner->device->ops->channel_rule(run->runner->device, &rule, err);
}

int moe_op_scan(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_recurrence *c = &run->runner->config->recurrence;
    float *const *values = run->runner->buffers.values;
    moe_selective_scan scan = {.n = c->conv_channels,
                               .n_rows = c->key_dim,
                               .decay = floats_of(run, op->tensor),
                               .dt_bias = floats_of(run, op->bias),
                               .skip = floats_of(run, MOE_LAYER_SCAN_SKIP),
                               .v = values[MOE_VALUE_CONVOLVED],
                               .dt = values[MOE_VALUE_STEPS],
                               .k = values[MOE_VALUE_SCAN_K],
                               .q = values[MOE_VALUE_SCAN_Q],
                               .sequences = run->sequences,
                               .n_sequences = run->n_sequences};
    return run->runner->device->ops->selective_scan(run->runner->device, &scan, err);
}
