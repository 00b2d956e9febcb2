/* SPDX-License-Identifier: MIT */
/* Layers with a state. STATES advances the states of a pass's sequences. The operations behind it
 * are then carried out for all tokens of these sequences together; one round takes as many
 * sequences as the scratch has room for.
 *
 * The device takes the tokens of each sequence in order, and a token's work on the state does not
 * depend on its neighbours in the pass. So it changes no bit how a prompt is cut into chunks.
 *
 * A pass that logs (moe_state_run) keeps for each row what is needed to advance the state by it:
 * the row before the convolution, and its gates. A draft takes the rows of its ancestors from the
 * log, to advance the state; no output is computed for them. */
#include "runtime/pass/program_run.h"

#include "cpu/kernels/delta_rule.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

_Static_assert(MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_KEY_DIM &&
                   MOE_RECURRENCE_MAX_DIM <= MOE_DELTA_MAX_VALUE_DIM &&
                   MOE_RECURRENCE_MAX_KERNEL <= MOE_DELTA_MAX_TAPS,
               "kernels take what configs may have");

/* The most sequences that are advanced together. */
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

/* What a STATES operation advances: its layer's states, or those of the convolution of a table. */
typedef struct advanced {
    const moe_state_layout *at;
    const float *mixed; /* [rows of the pass][n_mixed] */
    const float *gates; /* [..][n_gates]; NULL: states advance by `mixed` alone */
    float *out;         /* [..][n_out] */
    size_t n_mixed, n_gates, n_out;
} advanced;

static advanced advanced_by(const moe_runner *runner, const moe_op *op, uint32_t layer)
{
    float *const *values = runner->buffers.values;
    const bool of_ngrams = op->u.states.of_ngrams;
    const uint32_t n_gates = of_ngrams ? 0 : runner->config->recurrence.n_gates;
    return (advanced){
        .at = &runner->states->layers[of_ngrams ? runner->config->n_layer : layer],
        .mixed = values[op->x.value],
        .gates = n_gates > 0 ? values[MOE_VALUE_STATE_GATES] : NULL,
        .out = values[op->y.value],
        .n_mixed = op->x.stride,
        .n_gates = n_gates,
        .n_out = op->y.stride,
    };
}

/* Describes the first n_rows logged rows of a run to the device. */
static moe_delta_sequence logged_rows(const advanced *a, const moe_state_run *run, uint32_t n_rows)
{
    const float *first = log_row(run, a->at, 0);
    return (moe_delta_sequence){.mixed = first,
                                .mixed_stride = a->at->row_bytes / sizeof(float),
                                .gates = first + a->n_mixed,
                                .gates_stride = a->at->row_bytes / sizeof(float),
                                .n_tokens = n_rows,
                                .from = state_at(run->from, a->at),
                                .to = (float *)state_at(run->to, a->at)};
}

static int log_rows(moe_device *device, const advanced *a, const moe_state_run *run, moe_error *err)
{
    float *out = log_row(run, a->at, run->n_logged);
    const size_t stride = a->at->row_bytes / sizeof(float);
    MOE_TRY(device->ops->copy_rows(device, a->mixed + run->first_row * a->n_mixed, a->n_mixed, out,
                                   stride, (uint32_t)a->n_mixed, run->n_rows, err));
    return a->n_gates == 0 ? MOE_OK
                           : device->ops->copy_rows(device, a->gates + run->first_row * a->n_gates,
                                                    a->n_gates, out + a->n_mixed, stride,
                                                    (uint32_t)a->n_gates, run->n_rows, err);
}

/* Describes the rows of one run of the pass to the device. It takes their inputs from the log if
 * the run has one, otherwise from the buffers. */
static moe_delta_sequence rows_of_run(const advanced *a, const moe_state_run *run)
{
    moe_delta_sequence s;
    if (run->log != NULL) {
        s = logged_rows(a, run, run->n_logged + run->n_rows);
    } else {
        s = (moe_delta_sequence){.mixed = a->mixed + run->first_row * a->n_mixed,
                                 .mixed_stride = a->n_mixed,
                                 .gates = a->gates != NULL ? a->gates + run->first_row * a->n_gates
                                                           : NULL,
                                 .gates_stride = a->n_gates,
                                 .n_tokens = run->n_rows,
                                 .from = state_at(run->from, a->at),
                                 .to = (float *)state_at(run->to, a->at)};
    }
    s.n_silent = run->n_logged;
    s.out = a->out + run->first_row * a->n_out;
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
    return moe_program_run(&run, (moe_span){first, first + op->u.states.n_step}, err);
}

int moe_op_states(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_pass *pass = run->pass;
    const advanced a = advanced_by(run->runner, op, run->layer);
    moe_delta_sequence sequences[MOST_SEQUENCES];
    size_t most = moe_delta_scratch_rows(&run->runner->buffers);
    size_t n_tokens = 0;
    uint32_t n = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < pass->n_state_runs && status == MOE_OK; i++) {
        const moe_state_run *of = &pass->state_runs[i];
        if (of->log != NULL) {
            status = log_rows(run->runner->device, &a, of, err);
        }
        moe_delta_sequence s = rows_of_run(&a, of);
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
    const advanced a = advanced_by(runner, op, layer);
    moe_delta_sequence s = logged_rows(&a, of, of->n_rows);
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

/* ---- The operations that advance states ---- */

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
