/* SPDX-License-Identifier: MIT */
/* Layers with a state: projections; STATES and the operations behind it, which advance the states
 * of sequences for all their tokens at once; the output. */
#include "runtime/program/program_builder.h"

static const moe_recurrence *recurrence(const moe_program_builder *b)
{
    return &b->config->recurrence;
}

static void gate(moe_program_builder *b, moe_gating_kind kind, moe_value gates, moe_value value,
                 uint32_t n)
{
    moe_build(b, (moe_op){.kind = MOE_OP_GATE,
                          .n = n,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(value, n),
                          .y = moe_all_of(value, n),
                          .z = moe_all_of(gates, n),
                          .u.gate.kind = kind});
}

/* The `n_step` operations appended next advance the states. */
static void begin_states(moe_program_builder *b, uint32_t n_step)
{
    const moe_recurrence *c = recurrence(b);
    moe_build(b, (moe_op){.kind = MOE_OP_STATES,
                          .n = c->conv_channels,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_MIXED, c->conv_channels),
                          .y = moe_all_of(MOE_VALUE_STATE_OUT, moe_recurrence_out_floats(c)),
                          .u.states.n_step = n_step});
}

/* Appends an operation that reads and writes the values that STATES names. */
static void advance(moe_program_builder *b, moe_op_kind kind, int tensor, int bias)
{
    moe_build(b, (moe_op){.kind = kind, .tensor = tensor, .bias = bias});
}

static void claim_vector(moe_program_builder *b, int tensor, uint64_t n)
{
    moe_build_claim(b, tensor, n, 1, MOE_TENSOR_VECTOR);
}

static void claim_rows(moe_program_builder *b, int tensor, uint64_t n_in, uint64_t n_out)
{
    moe_build_claim(b, tensor, n_in, n_out, MOE_TENSOR_MATRIX_F32);
}

/* Claims a tensor if the file has it; some files leave it out. */
static void claim_present(moe_program_builder *b, int tensor, uint64_t n)
{
    if (moe_build_has(b, tensor)) {
        claim_vector(b, tensor, n);
    }
}

/* For a rule that includes the convolution: reserves `n` floats of scratch for each token. */
static void convolve_within(moe_program_builder *b, size_t n)
{
    size_t *n_floats = &b->program->n_floats[MOE_VALUE_CONVOLVED];
    *n_floats = n > *n_floats ? n : *n_floats;
}

/* Older files: splits a row with, for each key head, its query, its key, its heads' values and
 * their gates. The parts become MIXED and the output's gate. */
static void split_groups(moe_program_builder *b)
{
    const moe_recurrence *c = recurrence(b);
    size_t inner = moe_recurrence_out_floats(c);
    uint32_t values = c->n_head / c->n_key_head * c->value_dim;
    size_t keys = (size_t)c->n_key_head * c->key_dim;
    size_t stride = c->conv_channels + inner;
    for (uint32_t h = 0; h < c->n_key_head; h++) {
        size_t at = (size_t)h * (2 * c->key_dim + 2 * values);
        size_t key = (size_t)h * c->key_dim;
        size_t value = (size_t)h * values;
        moe_build_copy(b, moe_part_of(MOE_VALUE_PROJECTED, at, stride),
                       moe_part_of(MOE_VALUE_MIXED, key, c->conv_channels), c->key_dim, 1);
        moe_build_copy(b, moe_part_of(MOE_VALUE_PROJECTED, at + c->key_dim, stride),
                       moe_part_of(MOE_VALUE_MIXED, keys + key, c->conv_channels), c->key_dim, 1);
        at += 2 * c->key_dim;
        moe_build_copy(b, moe_part_of(MOE_VALUE_PROJECTED, at, stride),
                       moe_part_of(MOE_VALUE_MIXED, 2 * keys + value, c->conv_channels), values, 1);
        moe_build_copy(b, moe_part_of(MOE_VALUE_PROJECTED, at + values, stride),
                       moe_part_of(MOE_VALUE_OUT_GATE, value, inner), values, 1);
    }
}

/* Projects the gates. Their rows are [beta of all heads | alpha of all heads] or, if one tensor has
 * both, for each key head beta of its heads, then alpha. */
static void project_gates(moe_program_builder *b)
{
    const moe_recurrence *c = recurrence(b);
    uint32_t n_embd = b->config->n_embd;
    uint32_t n = c->n_head;
    if (!c->tiled) {
        moe_build_linear(b, MOE_VALUE_NORM, n_embd, MOE_LAYER_DELTA_BA, c->n_gates, MOE_TENSOR_NONE,
                         MOE_VALUE_STATE_GATES);
        return;
    }
    const moe_op_output outputs[2] = {
        moe_build_output(MOE_LAYER_DELTA_BETA, 0, n, MOE_VALUE_BETA),
        moe_build_output(MOE_LAYER_DELTA_ALPHA, 0, n, MOE_VALUE_ALPHA),
    };
    moe_build_linears(b, MOE_VALUE_NORM, n_embd, outputs, 2);
    moe_build_copy(b, moe_all_of(MOE_VALUE_BETA, n),
                   moe_all_of(MOE_VALUE_STATE_GATES, 2 * (size_t)n), n, 1);
    moe_build_copy(b, moe_all_of(MOE_VALUE_ALPHA, n),
                   moe_part_of(MOE_VALUE_STATE_GATES, n, 2 * (size_t)n), n, 1);
}

/* Gated delta rule. */
static void build_delta(moe_program_builder *b)
{
    const moe_recurrence *c = recurrence(b);
    uint32_t n_embd = b->config->n_embd;
    uint32_t inner = (uint32_t)moe_recurrence_out_floats(c);
    if (c->in_groups) {
        moe_build_linear(b, MOE_VALUE_NORM, n_embd, MOE_LAYER_DELTA_QKV, c->conv_channels + inner,
                         MOE_TENSOR_NONE, MOE_VALUE_PROJECTED);
        split_groups(b);
    } else {
        const moe_op_output outputs[2] = {
            moe_build_output(MOE_LAYER_DELTA_QKV, 0, c->conv_channels, MOE_VALUE_MIXED),
            moe_build_output(MOE_LAYER_DELTA_Z, 0, inner, MOE_VALUE_OUT_GATE),
        };
        moe_build_linears(b, MOE_VALUE_NORM, n_embd, outputs, 2);
    }
    project_gates(b);
    convolve_within(b, c->conv_channels);
    begin_states(b, 1);
    advance(b, MOE_OP_DELTA_RULE, MOE_LAYER_DELTA_CONV, MOE_TENSOR_NONE);
    claim_rows(b, MOE_LAYER_DELTA_CONV, c->conv_kernel, c->conv_channels);
    claim_vector(b, MOE_LAYER_DELTA_DECAY, c->n_head);
    claim_vector(b, MOE_LAYER_DELTA_DT_BIAS, c->n_head);
    moe_build_norm(b, MOE_LAYER_DELTA_NORM, moe_all_of(MOE_VALUE_STATE_OUT, c->value_dim),
                   c->value_dim, c->n_head);
    gate(b, c->sigmoid ? MOE_GATING_SIGMOID : MOE_GATING_SILU, MOE_VALUE_OUT_GATE,
         MOE_VALUE_STATE_OUT, inner);
    moe_build_linear(b, MOE_VALUE_STATE_OUT, inner, MOE_LAYER_DELTA_OUT, b->config->n_embd,
                     MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
}

/* A short convolution between two gates: the projection has rows [B | C | x], and the layer adds
 * projection(C * convolution(B * x)). */
static void build_convolution(moe_program_builder *b)
{
    uint32_t n = recurrence(b)->conv_channels;
    const moe_op_output outputs[3] = {
        moe_build_output(MOE_LAYER_CONV_IN, 0, n, MOE_VALUE_IN_GATE),
        moe_build_output(MOE_LAYER_CONV_IN, n, n, MOE_VALUE_OUT_GATE),
        moe_build_output(MOE_LAYER_CONV_IN, 2 * n, n, MOE_VALUE_MIXED),
    };
    moe_build_linears(b, MOE_VALUE_NORM, b->config->n_embd, outputs, 3);
    gate(b, MOE_GATING_PLAIN, MOE_VALUE_IN_GATE, MOE_VALUE_MIXED, n);
    begin_states(b, 1);
    advance(b, MOE_OP_CONVOLVE, MOE_LAYER_CONV_TAPS, MOE_TENSOR_NONE);
    claim_rows(b, MOE_LAYER_CONV_TAPS, recurrence(b)->conv_kernel, n);
    gate(b, MOE_GATING_PLAIN, MOE_VALUE_OUT_GATE, MOE_VALUE_STATE_OUT, n);
    moe_build_linear(b, MOE_VALUE_STATE_OUT, n, MOE_LAYER_CONV_OUT, b->config->n_embd,
                     MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
}

/* Mamba-2. Rows of the projection: the output's gate, the convolution's input, time steps. */
static void build_space(moe_program_builder *b)
{
    const moe_recurrence *c = recurrence(b);
    uint32_t inner = (uint32_t)moe_recurrence_out_floats(c);
    uint32_t width = inner / c->n_key_head;
    const moe_op_output outputs[3] = {
        moe_build_output(MOE_LAYER_SPACE_IN, 0, inner, MOE_VALUE_OUT_GATE),
        moe_build_output(MOE_LAYER_SPACE_IN, inner, c->conv_channels, MOE_VALUE_MIXED),
        moe_build_output(MOE_LAYER_SPACE_IN, inner + c->conv_channels, c->n_head,
                         MOE_VALUE_STATE_GATES),
    };
    moe_build_linears(b, MOE_VALUE_NORM, b->config->n_embd, outputs, 3);
    convolve_within(b, c->conv_channels);
    begin_states(b, 1);
    advance(b, MOE_OP_STATE_SPACE, MOE_LAYER_DELTA_CONV, MOE_LAYER_SPACE_CONV_BIAS);
    claim_rows(b, MOE_LAYER_DELTA_CONV, c->conv_kernel, c->conv_channels);
    claim_present(b, MOE_LAYER_SPACE_CONV_BIAS, c->conv_channels);
    claim_rows(b, MOE_LAYER_SPACE_DECAY, 1, c->n_head);
    claim_rows(b, MOE_LAYER_SPACE_SKIP, 1, c->n_head);
    claim_vector(b, MOE_LAYER_DELTA_DT_BIAS, c->n_head);
    gate(b, MOE_GATING_SILU, MOE_VALUE_OUT_GATE, MOE_VALUE_STATE_OUT, inner);
    claim_rows(b, MOE_LAYER_SPACE_NORM, width, c->n_key_head);
    for (uint32_t g = 0; g < c->n_key_head; g++) {
        moe_operand group = moe_part_of(MOE_VALUE_STATE_OUT, (size_t)g * width, inner);
        moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                              .n = width,
                              .tensor = MOE_LAYER_SPACE_NORM,
                              .bias = MOE_TENSOR_NONE,
                              .x = group,
                              .y = group,
                              .u.norm = {.eps = b->config->norm_eps, .weight_at = g * width}});
    }
    moe_build_linear(b, MOE_VALUE_STATE_OUT, inner, MOE_LAYER_DELTA_OUT, b->config->n_embd,
                     MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
}

/* Claims the decays of heads, one each. Some families' files have a column of them, others a
 * row. */
static void claim_decays(moe_program_builder *b, uint32_t n_head)
{
    const moe_gguf_tensor *found =
        b->claims != NULL ? moe_claims_find(b->claims, b->layer, MOE_LAYER_CHANNEL_DECAY) : NULL;
    if (found != NULL && found->dims[0] == n_head) {
        claim_vector(b, MOE_LAYER_CHANNEL_DECAY, n_head);
    } else {
        claim_rows(b, MOE_LAYER_CHANNEL_DECAY, 1, n_head);
    }
}

/* Kimi's delta attention. Decays and the output's gate are projected in two steps, if the file has
 * the second matrices. */
static void build_channels(moe_program_builder *b)
{
    const moe_recurrence *c = recurrence(b);
    uint32_t n_embd = b->config->n_embd;
    uint32_t inner = (uint32_t)moe_recurrence_out_floats(c);
    bool decay_steps = moe_build_has(b, MOE_LAYER_CHANNEL_F_B);
    bool gate_steps = moe_build_has(b, MOE_LAYER_CHANNEL_G_B);
    uint32_t n_low = c->key_dim;
    const moe_value parts[3] = {MOE_VALUE_PART_Q, MOE_VALUE_PART_K, MOE_VALUE_PART_V};
    const moe_op_output outputs[6] = {
        /* the projections of queries, keys and values */
        moe_build_output(MOE_LAYER_CHANNEL_Q, 0, inner, parts[0]),
        moe_build_output(MOE_LAYER_CHANNEL_K, 0, inner, parts[1]),
        moe_build_output(MOE_LAYER_CHANNEL_V, 0, inner, parts[2]),
        moe_build_output(MOE_LAYER_CHANNEL_F_A, 0, decay_steps ? n_low : inner,
                         decay_steps ? MOE_VALUE_DECAY_LOW : parts[0]),
        moe_build_output(MOE_LAYER_CHANNEL_G_A, 0, gate_steps ? n_low : inner,
                         gate_steps ? MOE_VALUE_GATE_LOW : MOE_VALUE_OUT_GATE),
        moe_build_output(MOE_LAYER_CHANNEL_BETA, 0, c->n_head, MOE_VALUE_BETA),
    };
    moe_build_linears(b, MOE_VALUE_NORM, n_embd, outputs, 3);
    if (decay_steps) {
        moe_build_linears(b, MOE_VALUE_NORM, n_embd, outputs + 3, 3);
    }
    for (uint32_t i = 0; i < 3; i++) {
        moe_build_copy(b, moe_all_of(parts[i], inner),
                       moe_part_of(MOE_VALUE_MIXED, (size_t)i * inner, c->conv_channels), inner, 1);
    }
    /* The queries' part has been copied; decays now use its memory. */
    if (decay_steps) {
        moe_build_linear(b, MOE_VALUE_DECAY_LOW, n_low, MOE_LAYER_CHANNEL_F_B, inner,
                         MOE_TENSOR_NONE, parts[0]);
    } else {
        moe_build_linears(b, MOE_VALUE_NORM, n_embd, outputs + 3, 3);
    }
    if (gate_steps) {
        moe_build_linear(b, MOE_VALUE_GATE_LOW, n_low, MOE_LAYER_CHANNEL_G_B, inner,
                         MOE_TENSOR_NONE, MOE_VALUE_OUT_GATE);
    }
    moe_build_copy(b, moe_all_of(MOE_VALUE_BETA, c->n_head),
                   moe_all_of(MOE_VALUE_STATE_GATES, c->n_gates), c->n_head, 1);
    moe_build_copy(b, moe_all_of(MOE_VALUE_PART_Q, inner),
                   moe_part_of(MOE_VALUE_STATE_GATES, c->n_head, c->n_gates), inner, 1);
    convolve_within(b, c->conv_channels + (size_t)inner);
    begin_states(b, 1);
    moe_build(b, (moe_op){.kind = MOE_OP_CHANNEL_RULE,
                          .tensor = MOE_LAYER_CHANNEL_CONV_Q,
                          .bias = MOE_TENSOR_NONE,
                          .factor = c->decay_bound});
    claim_rows(b, MOE_LAYER_CHANNEL_CONV_Q, c->conv_kernel, inner);
    claim_rows(b, MOE_LAYER_CHANNEL_CONV_K, c->conv_kernel, inner);
    claim_rows(b, MOE_LAYER_CHANNEL_CONV_V, c->conv_kernel, inner);
    claim_decays(b, c->n_head);
    claim_vector(b, MOE_LAYER_CHANNEL_DT_BIAS, inner);
    moe_build_norm(b, MOE_LAYER_CHANNEL_NORM, moe_all_of(MOE_VALUE_STATE_OUT, c->value_dim),
                   c->value_dim, c->n_head);
    gate(b, MOE_GATING_SIGMOID, MOE_VALUE_OUT_GATE, MOE_VALUE_STATE_OUT, inner);
    moe_build_linear(b, MOE_VALUE_STATE_OUT, inner, MOE_LAYER_CHANNEL_OUT, b->config->n_embd,
                     MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
}

/* Mamba-1. What follows the convolution is projected while states advance. So a draft logs only the
 * convolution's input, and the rest is projected again for its ancestors. */
static void build_scan(moe_program_builder *b)
{
    const moe_recurrence *c = recurrence(b);
    uint32_t n = c->conv_channels, rank = c->step_rank, state = c->key_dim;
    const moe_op_output inputs[2] = {
        moe_build_output(MOE_LAYER_SCAN_IN, 0, n, MOE_VALUE_MIXED),
        moe_build_output(MOE_LAYER_SCAN_IN, n, n, MOE_VALUE_OUT_GATE),
    };
    const moe_op_output parts[3] = {
        moe_build_output(MOE_LAYER_SCAN_X, 0, rank, MOE_VALUE_STEP_LOW),
        moe_build_output(MOE_LAYER_SCAN_X, rank, state, MOE_VALUE_SCAN_K),
        moe_build_output(MOE_LAYER_SCAN_X, rank + state, state, MOE_VALUE_SCAN_Q),
    };
    moe_build_linears(b, MOE_VALUE_NORM, b->config->n_embd, inputs, 2);
    begin_states(b, 7);
    moe_build(b, (moe_op){.kind = MOE_OP_CONVOLVE,
                          .n = n,
                          .tensor = MOE_LAYER_SCAN_CONV,
                          .bias = MOE_LAYER_SCAN_CONV_BIAS,
                          .x = moe_all_of(MOE_VALUE_MIXED, n),
                          .y = moe_all_of(MOE_VALUE_CONVOLVED, n)});
    claim_rows(b, MOE_LAYER_SCAN_CONV, c->conv_kernel, n);
    claim_present(b, MOE_LAYER_SCAN_CONV_BIAS, n);
    moe_build_linears(b, MOE_VALUE_CONVOLVED, n, parts, 3);
    moe_build_norm(b, MOE_LAYER_SCAN_STEP_NORM, moe_all_of(MOE_VALUE_STEP_LOW, rank), rank, 1);
    moe_build_norm(b, MOE_LAYER_SCAN_K_NORM, moe_all_of(MOE_VALUE_SCAN_K, state), state, 1);
    moe_build_norm(b, MOE_LAYER_SCAN_Q_NORM, moe_all_of(MOE_VALUE_SCAN_Q, state), state, 1);
    moe_build_linear(b, MOE_VALUE_STEP_LOW, rank, MOE_LAYER_SCAN_STEP, n, MOE_TENSOR_NONE,
                     MOE_VALUE_STEPS);
    advance(b, MOE_OP_SCAN, MOE_LAYER_SCAN_DECAY, MOE_LAYER_SCAN_STEP_BIAS);
    claim_rows(b, MOE_LAYER_SCAN_DECAY, state, n);
    claim_vector(b, MOE_LAYER_SCAN_STEP_BIAS, n);
    claim_vector(b, MOE_LAYER_SCAN_SKIP, n);
    gate(b, MOE_GATING_SILU, MOE_VALUE_OUT_GATE, MOE_VALUE_STATE_OUT, n);
    moe_build_linear(b, MOE_VALUE_STATE_OUT, n, MOE_LAYER_SCAN_OUT, b->config->n_embd,
                     MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
}

void moe_build_recurrent(moe_program_builder *b)
{
    static void (*const builders[MOE_RECURRENCES])(moe_program_builder *) = {
        [MOE_RECURRENCE_DELTA] = build_delta, [MOE_RECURRENCE_CONVOLUTION] = build_convolution,
        [MOE_RECURRENCE_SPACE] = build_space, [MOE_RECURRENCE_CHANNELS] = build_channels,
        [MOE_RECURRENCE_SCAN] = build_scan,
    };
    builders[recurrence(b)->kind](b);
}
