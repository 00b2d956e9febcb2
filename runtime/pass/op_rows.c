/* SPDX-License-Identifier: MIT */
/* Operations on the rows of a pass. An operation holds all arguments, so each is one call of the
 * device. */
#include "runtime/pass/program_run.h"

#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/runner.h"

static moe_device *device_of(const moe_run *run)
{
    return run->runner->device;
}

static float *at(const moe_run *run, const moe_operand *o)
{
    MOE_ASSERT(run->runner->buffers.values[o->value] != NULL);
    return run->runner->buffers.values[o->value] + o->at;
}

static size_t row_floats(const moe_op *op, const moe_operand *o)
{
    return (size_t)op->each * o->stride;
}

const moe_weight *moe_op_weight(const moe_run *run, int tensor)
{
    static const moe_weight none;
    const moe_weights *w = run->runner->weights;
    if (tensor >= 0 && tensor < MOE_LAYER_TENSOR_COUNT) {
        return moe_layer_weight(run->runner, run->layer, tensor);
    }
    switch (tensor) {
    case MOE_TENSOR_NONE:
        return &none;
    case MOE_TENSOR_TOKEN_EMBEDDING:
        return &w->token_embedding;
    case MOE_TENSOR_OUTPUT_NORM:
        return &w->output_norm;
    case MOE_TENSOR_OUTPUT_NORM_BIAS:
        return &w->output_norm_bias;
    case MOE_TENSOR_OUTPUT:
        return &w->output;
    case MOE_TENSOR_OUTPUT_BIAS:
        return &w->output_bias;
    default:
        return tensor < MOE_TENSOR_DRAFT ? &w->streams[tensor - MOE_TENSOR_STREAMS]
                                         : &w->draft[tensor - MOE_TENSOR_DRAFT];
    }
}

int moe_op_embed(const moe_run *run, const moe_op *op, moe_error *err)
{
    return device_of(run)->ops->embed(device_of(run), moe_op_weight(run, op->tensor),
                                      run->pass->tokens, run->n_rows, op->factor, at(run, &op->y),
                                      err);
}

static const float *norm_weight(const moe_run *run, const moe_op *op)
{
    const float *weight = op->tensor == MOE_TENSOR_ONES
                              ? run->runner->buffers.values[MOE_VALUE_ONES]
                              : moe_op_weight(run, op->tensor)->data;
    return weight + op->u.norm.weight_at;
}

int moe_op_norm(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_device_ops *ops = device_of(run)->ops;
    const float *weight = norm_weight(run, op);
    const uint32_t n_rows = run->n_rows * op->each;
    return op->u.norm.mean ? ops->layer_norm(device_of(run), at(run, &op->x), weight,
                                             moe_op_weight(run, op->bias)->data, at(run, &op->y),
                                             n_rows, op->n, op->x.stride, op->u.norm.eps, err)
                           : ops->rms_norm(device_of(run), at(run, &op->x), weight, at(run, &op->y),
                                           n_rows, op->n, op->x.stride, op->u.norm.eps, err);
}

int moe_op_linear(const moe_run *run, const moe_op *op, moe_error *err)
{
    moe_linear linears[MOE_MOST_OUTPUTS];
    const uint32_t n = op->u.linear.n_outputs;
    for (uint32_t i = 0; i < n; i++) {
        const moe_op_output *out = &op->u.linear.outputs[i];
        const moe_weight *weight = moe_op_weight(run, out->tensor);
        linears[i] = (moe_linear){
            out->n == weight->n_out ? *weight : moe_weight_rows(weight, out->first, out->n),
            moe_op_weight(run, out->bias)->data, at(run, &out->to)};
    }
    return device_of(run)->ops->linear(device_of(run), at(run, &op->x), run->n_rows, op->n, linears,
                                       n, err);
}

int moe_op_head_linear(const moe_run *run, const moe_op *op, moe_error *err)
{
    moe_head_linear linear = {.weight = *moe_op_weight(run, op->tensor),
                              .n_head = op->each,
                              .x = at(run, &op->x),
                              .x_row_stride = row_floats(op, &op->x),
                              .x_head_stride = op->x.stride,
                              .out = at(run, &op->y),
                              .out_row_stride = row_floats(op, &op->y),
                              .out_head_stride = op->y.stride};
    return device_of(run)->ops->head_linear(device_of(run), &linear, run->n_rows, err);
}

static moe_rope rope_of(const moe_run *run, const moe_op *op)
{
    const moe_pass_buffers *b = &run->runner->buffers;
    return (moe_rope){.x = at(run, &op->x),
                      .row_stride = row_floats(op, &op->x),
                      .head_stride = op->x.stride,
                      .n_head = op->each,
                      .n_rot = op->n,
                      .interleaved = op->u.rope.interleaved,
                      .cos = op->u.rope.window ? b->window_cos : b->rope_cos,
                      .sin = op->u.rope.window ? b->window_sin : b->rope_sin};
}

int moe_op_rope(const moe_run *run, const moe_op *op, moe_error *err)
{
    moe_rope rope = rope_of(run, op);
    if (op->u.rope.back) {
        float *back = run->runner->buffers.rope_back;
        for (size_t i = 0; i < (size_t)run->n_rows * (op->n / 2); i++) {
            back[i] = -rope.sin[i];
        }
        rope.sin = back;
    }
    return device_of(run)->ops->rope(device_of(run), &rope, run->n_rows, err);
}

int moe_op_clamp(const moe_run *run, const moe_op *op, moe_error *err)
{
    return device_of(run)->ops->clamp(device_of(run), op->factor, at(run, &op->x),
                                      (size_t)run->n_rows * op->n, err);
}

/* The factor of a layer that has its own is known only once its weights are loaded. */
int moe_op_scale(const moe_run *run, const moe_op *op, moe_error *err)
{
    const float factor = op->tensor == MOE_TENSOR_NONE
                             ? op->factor
                             : run->runner->weights->layers[run->layer].out_scale;
    return factor == 1.0f ? MOE_OK
                          : device_of(run)->ops->scale(device_of(run), factor, at(run, &op->x),
                                                       (size_t)run->n_rows * op->n, err);
}

int moe_op_soft_cap(const moe_run *run, const moe_op *op, moe_error *err)
{
    return device_of(run)->ops->soft_cap(device_of(run), op->factor, at(run, &op->x),
                                         (size_t)run->n_rows * op->n, err);
}

int moe_op_add(const moe_run *run, const moe_op *op, moe_error *err)
{
    return device_of(run)->ops->add(device_of(run), at(run, &op->x), at(run, &op->z),
                                    at(run, &op->y), (size_t)run->n_rows * op->n, err);
}

int moe_op_copy(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_device_ops *ops = device_of(run)->ops;
    const size_t n_vectors = (size_t)run->n_rows * op->each;
    return op->n == op->x.stride && op->n == op->y.stride
               ? ops->copy(device_of(run), at(run, &op->y), at(run, &op->x),
                           n_vectors * op->n * sizeof(float), err)
               : ops->copy_rows(device_of(run), at(run, &op->x), op->x.stride, at(run, &op->y),
                                op->y.stride, op->n, n_vectors, err);
}

int moe_op_read(const moe_run *run, const moe_op *op, moe_error *err)
{
    const bool gated = op->z.value != MOE_VALUE_NONE;
    const bool weighs = op->u.streams.weights.value != MOE_VALUE_NONE;
    const uint32_t recalled = op->u.streams.n_recalled;
    const float *of_tensor = moe_op_weight(run, op->tensor)->data;
    const moe_stream_read read = {.x = at(run, &op->x),
                                  .n_streams = recalled > 0 ? recalled : op->each,
                                  .n = op->n,
                                  .weights = weighs ? at(run, &op->u.streams.weights) : NULL,
                                  .n_weights = op->u.streams.weights.stride,
                                  .base = moe_op_weight(run, op->bias)->data,
                                  .scale = recalled > 0 ? NULL : of_tensor,
                                  .score = recalled > 0 ? of_tensor : NULL,
                                  .n_stored = recalled > 0 ? op->x.stride / op->n : 0,
                                  .eps = op->u.streams.eps,
                                  .magnitude = op->u.streams.magnitude,
                                  .write_eps = op->u.streams.write_eps,
                                  .mixings = op->u.streams.mixings,
                                  .gates = gated ? at(run, &op->z) : NULL,
                                  .y = at(run, &op->y)};
    return device_of(run)->ops->stream_read(device_of(run), &read, run->n_rows, err);
}

int moe_op_write(const moe_run *run, const moe_op *op, moe_error *err)
{
    const bool weighs = op->u.streams.weights.value != MOE_VALUE_NONE;
    const moe_stream_write write = {.x = at(run, &op->x),
                                    .n_streams = weighs ? op->each : op->x.stride / op->n,
                                    .n = op->n,
                                    .branch = at(run, &op->z),
                                    .weights = weighs ? at(run, &op->u.streams.weights) : NULL,
                                    .begins = op->u.streams.begins,
                                    .weights_stride = op->u.streams.weights.stride,
                                    .mixes = op->u.streams.mixings > 0};
    return device_of(run)->ops->stream_write(device_of(run), &write, run->n_rows, err);
}

int moe_op_gate(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_device_ops *ops = device_of(run)->ops;
    const size_t n_vectors = (size_t)run->n_rows * op->each;
    if (op->u.gate.one && op->u.gate.kind == MOE_GATING_SIGMOID) {
        return ops->sigmoid_scale(device_of(run), at(run, &op->z), at(run, &op->x),
                                  (uint32_t)n_vectors, op->n, err);
    }
    moe_gating gating = {.kind = op->u.gate.kind,
                         .one = op->u.gate.one,
                         .gate = at(run, &op->z),
                         .gate_stride = op->z.stride,
                         .x = at(run, &op->x),
                         .x_stride = op->x.stride,
                         .n = op->n};
    return ops->gate(device_of(run), &gating, n_vectors, err);
}

/* Rows that follow each other are read in place, unless they have several streams. */
int moe_op_select(const moe_run *run, const moe_op *op, moe_error *err)
{
    float **values = run->runner->buffers.values;
    const uint32_t *rows = run->rows;
    const uint32_t n = run->n_rows;
    float *selected = values[MOE_VALUE_LOGITS] - (size_t)n * run->runner->config->n_embd;
    const bool together = rows[n - 1] - rows[0] == n - 1;
    float *x = at(run, &op->x);
    values[MOE_VALUE_SELECTED] = selected;
    if (op->y.value != MOE_VALUE_WANTED) {
        return device_of(run)->ops->gather(device_of(run), x, op->n, rows, n, at(run, &op->y), err);
    }
    values[op->y.value] = together ? x + (size_t)rows[0] * op->n : selected;
    return together ? MOE_OK
                    : device_of(run)->ops->gather(device_of(run), x, op->n, rows, n, selected, err);
}

int moe_op_network(const moe_run *run, const moe_op *op, moe_error *err)
{
    const int first = op->tensor + op->u.experts.no_gate;
    moe_expert_work work = {.gate = *moe_op_weight(run, first),
                            .up = *moe_op_weight(run, op->tensor + 1),
                            .down = *moe_op_weight(run, op->tensor + 2),
                            .activation = op->u.experts.activation,
                            .n_rows = run->n_rows};
    return device_of(run)->ops->experts(device_of(run), at(run, &op->x), run->n_rows, op->n, &work,
                                        1, at(run, &op->y), op->n, err);
}

/* ---- Several in one call (program_fuse.c) ---- */

/* The norm may be the first operation of the next layer. */
static const float *norm_weight_of_layer(const moe_run *run, const moe_op *norm)
{
    moe_run of_norm = *run;
    of_norm.layer = norm->layer;
    return norm_weight(&of_norm, norm);
}

int moe_op_add_norm(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_op *norm = op + op->n_fused - 1;
    const moe_op *add = op->kind == MOE_OP_COMBINE ? op + 1 : op;
    const moe_combine combine = add > op ? moe_op_combine_of(run, op) : (moe_combine){0};
    MOE_TRY(add + 1 < norm ? moe_op_select(run, add + 1, err) : MOE_OK);
    const moe_add_norm job = {.combine = add > op ? &combine : NULL,
                              .a = at(run, &add->x),
                              .b = at(run, &add->z),
                              .sum = at(run, &add->y),
                              .weight = norm_weight_of_layer(run, norm),
                              .y = at(run, &norm->y),
                              .n = norm->n,
                              .eps = norm->u.norm.eps};
    MOE_ASSERT(at(run, &norm->x) == job.sum);
    return device_of(run)->ops->add_norm(device_of(run), &job, run->n_rows, err);
}

int moe_op_heads(const moe_run *run, const moe_op *op, moe_error *err)
{
    const bool normed = op->kind == MOE_OP_NORM;
    const moe_op *ropes = normed ? op + 2 : op, *store = ropes + 2;
    const moe_heads_store job = {.norms = {normed ? norm_weight(run, &op[0]) : NULL,
                                           normed ? norm_weight(run, &op[1]) : NULL},
                                 .eps = normed ? op->u.norm.eps : 0.0f,
                                 .q = rope_of(run, &ropes[0]),
                                 .k = rope_of(run, &ropes[1]),
                                 .layout = run->runner->kv->layers[run->layer],
                                 .rows = run->pass->kv_rows,
                                 .v = at(run, &store->z),
                                 .v_stride = store->z.stride};
    MOE_ASSERT(job.k.head_stride == job.layout.k_dim && job.k.n_head == job.layout.n_head_kv);
    return device_of(run)->ops->heads_store(device_of(run), &job, run->n_rows, err);
}
