/* SPDX-License-Identifier: MIT */
#include "runtime/program/program_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/program/op_forms.h"

/* ---- Tensors ---- */

/* Finds the tensor's place in the map. NULL: the tensor is made, or looked for, when weights are
 * loaded. */
static moe_tensor_ref *find_ref(const moe_program_builder *b, int tensor)
{
    moe_tensor_map *map = b->map;
    if (tensor >= 0 && tensor < MOE_LAYER_TENSOR_COUNT) {
        return &map->layers[b->layer].tensors[tensor];
    }
    switch (tensor) {
    case MOE_TENSOR_NONE:
    case MOE_TENSOR_ONES:
        return NULL;
    case MOE_TENSOR_TOKEN_EMBEDDING:
        return &map->token_embedding;
    case MOE_TENSOR_OUTPUT_NORM:
        return &map->output_norm;
    case MOE_TENSOR_OUTPUT_NORM_BIAS:
        return &map->output_norm_bias;
    case MOE_TENSOR_OUTPUT:
        return &map->output;
    case MOE_TENSOR_OUTPUT_BIAS:
        return &map->output_bias;
    default:
        return tensor < MOE_TENSOR_DRAFT ? &map->streams[tensor - MOE_TENSOR_STREAMS]
                                         : &map->draft[tensor - MOE_TENSOR_DRAFT];
    }
}

static const moe_global_tensor *find_global(const moe_program_builder *b, int tensor)
{
    return &b->globals[tensor - MOE_TENSOR_TOKEN_EMBEDDING];
}

bool moe_build_has(const moe_program_builder *b, int tensor)
{
    if (find_ref(b, tensor)->size > 0 || b->claims == NULL) {
        return find_ref(b, tensor)->size > 0;
    }
    if (tensor < MOE_LAYER_TENSOR_COUNT) {
        return moe_claims_find(b->claims, b->layer, (moe_layer_tensor)tensor) != NULL;
    }
    const char *name = find_global(b, tensor)->name;
    return name != NULL && moe_gguf_find_tensor(b->claims->gguf, name) != NULL;
}

uint64_t moe_build_first_rows(const moe_program_builder *b, moe_layer_tensor tensor)
{
    const moe_gguf_tensor *found = b->claims != NULL ? moe_claims_find(b->claims, 0, tensor) : NULL;
    return found != NULL ? found->dims[1] : 0;
}

/* ---- Checks ---- */

/* Writes the place of an operation: "layer 3, operation 'x = x + branch'". */
static void say_where(const moe_program_builder *b, const moe_op *op, char *where, size_t size)
{
    char text[128];
    moe_program_name_op(b->program, op, text, sizeof text);
    if (b->layer < b->config->n_layer) {
        snprintf(where, size, "layer %u, operation '%s'", b->layer, text);
    } else {
        snprintf(where, size, "operation '%s'", text);
    }
}

static void fail(moe_program_builder *b, const moe_op *op, const char *what)
{
    char where[160];
    if (b->status == MOE_OK) {
        say_where(b, op, where, sizeof where);
        b->status = moe_fail(b->err, MOE_ERR_INTERNAL, "%s: %s", where, what);
    }
}

/* Appends layer and operation to the message of a failed claim. */
static void name_user(const moe_program_builder *b, const moe_op *op)
{
    char where[160];
    if (b->status != MOE_OK && b->err != NULL) {
        size_t size = strlen(b->err->message);
        say_where(b, op, where, sizeof where);
        snprintf(b->err->message + size, sizeof b->err->message - size, " (%s)", where);
    }
}

/* Claims the tensor for the operation, unless the map has it already. Errors also name the
 * operation. */
static void claim(moe_program_builder *b, const moe_op *op, int tensor, moe_tensor_shape shape)
{
    moe_tensor_ref *ref = find_ref(b, tensor);
    if (b->status != MOE_OK || b->claims == NULL || ref == NULL || ref->size > 0) {
        return;
    }
    if (tensor < MOE_LAYER_TENSOR_COUNT) {
        b->status =
            moe_claim_layer_tensor(b->claims, b->layer, (moe_layer_tensor)tensor, shape, false);
    } else {
        const moe_global_tensor *global = find_global(b, tensor);
        b->status = global->name != NULL
                        ? moe_claim_tensor(b->claims, global->name, shape, global->optional, ref)
                        : MOE_OK;
    }
    name_user(b, op);
}

/* Makes the value's rows at least as wide as the operand needs. */
static void use(moe_program_builder *b, const moe_op *op, const moe_operand *o, uint32_t n,
                uint32_t each)
{
    size_t *n_floats = &b->program->n_floats[o->value];
    if (o->value == MOE_VALUE_NONE || n == 0 || (size_t)o->at + n > o->stride) {
        fail(b, op, "an operand is not in its value's rows");
    } else if (*n_floats < (size_t)each * o->stride) {
        *n_floats = (size_t)each * o->stride;
    }
}

static void read_value(moe_program_builder *b, const moe_op *op, const moe_operand *o, uint32_t n,
                       uint32_t each)
{
    use(b, op, o, n, each);
    if (!b->written[o->value]) {
        fail(b, op, "it reads what nothing before it has written");
    }
}

/* Claims or checks a matrix of n_in columns. If it is claimed here it must have exactly n_out rows,
 * otherwise at least as many. The halves of attn_kv_b have no place of their own in the file. */
static void need_matrix(moe_program_builder *b, const moe_op *op, int tensor, uint64_t n_in,
                        uint64_t n_out)
{
    bool half = (tensor == MOE_LAYER_ATTN_K_B || tensor == MOE_LAYER_ATTN_V_B) &&
                find_ref(b, MOE_LAYER_ATTN_KV_B)->size > 0;
    bool borrowed = b->borrows && tensor >= MOE_TENSOR_TOKEN_EMBEDDING;
    if (half) {
        return;
    }
    claim(b, op, tensor, (moe_tensor_shape){n_in, n_out, MOE_TENSOR_MATRIX});
    const moe_tensor_ref *ref = find_ref(b, tensor);
    if (ref->size == 0 && !borrowed) {
        fail(b, op, "its matrix is not in the file");
    } else if (ref->size > 0 && (ref->n_in != n_in || ref->n_out < n_out)) {
        fail(b, op, "its matrix is of another shape");
    }
}

static void need_vector(moe_program_builder *b, const moe_op *op, int tensor, uint64_t n)
{
    claim(b, op, tensor, (moe_tensor_shape){n, 1, MOE_TENSOR_VECTOR});
    const moe_tensor_ref *ref = find_ref(b, tensor);
    if (ref != NULL && ref->size > 0 && ref->n_in * ref->n_out < n) {
        fail(b, op, "its vector is shorter than what it is for");
    }
}

/* Drops a bias that the file does not have. */
static void drop_absent(const moe_program_builder *b, int *bias)
{
    bool borrowed = b->borrows && *bias >= MOE_TENSOR_TOKEN_EMBEDDING;
    if (*bias != MOE_TENSOR_NONE && !borrowed && !moe_build_has(b, *bias)) {
        *bias = MOE_TENSOR_NONE;
    }
}

static void check_linear(moe_program_builder *b, moe_op *op)
{
    const moe_op_output *outputs = op->u.linear.outputs;
    for (uint32_t i = 0; i < op->u.linear.n_outputs; i++) {
        moe_op_output *out = &op->u.linear.outputs[i];
        uint64_t n_out = 0;
        for (uint32_t k = 0; k < op->u.linear.n_outputs; k++) {
            uint64_t end = (uint64_t)outputs[k].first + outputs[k].n;
            n_out = outputs[k].tensor == out->tensor && end > n_out ? end : n_out;
        }
        drop_absent(b, &out->bias);
        need_matrix(b, op, out->tensor, op->n, n_out);
        need_vector(b, op, out->bias, out->n);
    }
}

/* Checks the experts' parts and biases. */
static void check_experts(moe_program_builder *b, const moe_op *op)
{
    const uint32_t n_inner = op->u.experts.n_inner, n_expert = b->config->n_expert;
    if (b->status == MOE_OK && b->claims != NULL) {
        b->status = moe_claim_experts(b->claims, b->layer, op->n, n_inner, !op->u.experts.no_gate);
        name_user(b, op);
    }
    for (int i = 0; i < 3 && op->bias != MOE_TENSOR_NONE; i++) {
        claim(b, op, op->bias + i,
              (moe_tensor_shape){i < 2 ? n_inner : op->n, n_expert, MOE_TENSOR_MATRIX_F32});
    }
}

/* Checks the operation's tensors, and the operands that it reads besides x. */
static void check_operands(moe_program_builder *b, moe_op *op)
{
    if (op->kind != MOE_OP_EXPERTS && op->kind != MOE_OP_READ) {
        drop_absent(b, &op->bias);
    }
    switch (op->kind) {
    case MOE_OP_EMBED:
        need_matrix(b, op, op->tensor, op->n, b->n_embeddings);
        break;
    case MOE_OP_SCALE:
        need_vector(b, op, op->tensor, 1);
        break;
    case MOE_OP_ROUTE:
        if (op->tensor == MOE_LAYER_ROUTER_TABLE) {
            claim(
                b, op, op->tensor,
                (moe_tensor_shape){b->config->n_expert_used, b->config->n_vocab, MOE_TENSOR_TABLE});
        } else if (b->config->gate_selection_bias) {
            need_vector(b, op, op->tensor, op->n);
        }
        need_vector(b, op, op->bias, op->n);
        break;
    case MOE_OP_EXPERTS:
        check_experts(b, op);
        break;
    case MOE_OP_ADD:
        read_value(b, op, &op->z, op->n, op->each);
        break;
    case MOE_OP_GATE:
        read_value(b, op, &op->z, op->u.gate.one ? 1 : op->n, op->each);
        break;
    case MOE_OP_MATCH:
        read_value(b, op, &op->z, op->n, op->each);
        read_value(b, op, &op->u.match, op->n, 1);
        break;
    case MOE_OP_READ:
        if (op->u.streams.n_recalled > 0) {
            need_vector(b, op, op->tensor, op->n);
            use(b, op, &op->u.streams.weights, op->u.streams.n_recalled, 1);
            break;
        }
        if (op->z.value != MOE_VALUE_NONE) {
            read_value(b, op, &op->z, op->n, op->each);
            if (op->u.streams.weights.value != MOE_VALUE_NONE) {
                read_value(b, op, &op->u.streams.weights, op->each, 1);
            }
            break;
        }
        need_vector(b, op, op->tensor,
                    op->u.streams.weights.stride == op->each ? 1
                    : op->u.streams.mixings > 0              ? 3
                                                             : 2);
        need_vector(b, op, op->bias, op->u.streams.weights.stride);
        read_value(b, op, &op->u.streams.weights, op->each, 1);
        break;
    case MOE_OP_WRITE:
        read_value(b, op, &op->z, op->n, 1);
        if (op->u.streams.weights.value != MOE_VALUE_NONE) {
            read_value(b, op, &op->u.streams.weights, op->each, 1);
        }
        break;
    case MOE_OP_CHOOSE:
        if (op->z.value != MOE_VALUE_NONE) {
            read_value(b, op, &op->z, op->each, 1);
        }
        break;
    case MOE_OP_KV_STORE:
        if (op->z.value != MOE_VALUE_NONE) {
            read_value(b, op, &op->z, op->z.stride, 1);
        }
        break;
    case MOE_OP_NORM:
        need_vector(b, op, op->tensor, (uint64_t)op->u.norm.weight_at + op->n);
        need_vector(b, op, op->bias, op->n);
        if (op->tensor == MOE_TENSOR_ONES && b->program->n_floats[MOE_VALUE_ONES] < op->n) {
            b->program->n_floats[MOE_VALUE_ONES] = op->n;
        }
        break;
    case MOE_OP_LINEAR:
        check_linear(b, op);
        break;
    case MOE_OP_HEAD_LINEAR:
        need_matrix(b, op, op->tensor, op->n, (uint64_t)op->u.n_out * op->each);
        break;
    case MOE_OP_ATTEND:
        need_vector(b, op, op->tensor, op->each);
        break;
    case MOE_OP_NETWORK:
        need_matrix(b, op, op->tensor + op->u.experts.no_gate, op->n, op->u.experts.n_inner);
        need_matrix(b, op, op->tensor + 1, op->n, op->u.experts.n_inner);
        need_matrix(b, op, op->tensor + 2, op->u.experts.n_inner, op->n);
        break;
    default:
        break;
    }
}

void moe_build(moe_program_builder *b, moe_op op)
{
    moe_program *program = b->program;
    op.each = op.each > 0 ? op.each : 1;
    op.layer = b->layer;
    if (op.x.value != MOE_VALUE_NONE) {
        read_value(b, &op, &op.x, op.n, op.each);
    }
    check_operands(b, &op);
    moe_op_written written[MOE_MOST_OUTPUTS];
    const uint32_t n_written = moe_op_written_by(&op, written);
    for (uint32_t i = 0; i < n_written; i++) {
        use(b, &op, &written[i].to, written[i].n, written[i].each);
        b->written[written[i].to.value] = true;
    }
    if (program->n_ops == b->capacity && b->status == MOE_OK) {
        uint32_t capacity = b->capacity > 0 ? 2 * b->capacity : 256;
        moe_op *ops = moe_realloc_array(program->ops, capacity, sizeof *ops);
        if (ops == NULL) {
            b->status = moe_fail(b->err, MOE_ERR_MEMORY,
                                 "out of memory for a program of %u operations", capacity);
        } else {
            program->ops = ops;
            b->capacity = capacity;
        }
    }
    if (b->status == MOE_OK) {
        op.forms = moe_op_forms(program, &op);
        program->ops[program->n_ops++] = op;
    }
}

void moe_build_claim(moe_program_builder *b, int tensor, uint64_t n_in, uint64_t n_out,
                     moe_tensor_form form)
{
    if (b->status == MOE_OK) {
        claim(b, &b->program->ops[b->program->n_ops - 1], tensor,
              (moe_tensor_shape){n_in, n_out, form});
    }
}

/* ---- Common operations ---- */

void moe_build_norm(moe_program_builder *b, int tensor, moe_operand x, uint32_t n, uint32_t each)
{
    moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                          .n = n,
                          .each = each,
                          .tensor = tensor,
                          .bias = MOE_TENSOR_NONE,
                          .x = x,
                          .y = x,
                          .u.norm.eps = b->config->norm_eps});
}

void moe_build_row_norm(moe_program_builder *b, int tensor, moe_value from, moe_value to)
{
    const moe_model_config *c = b->config;
    int bias = tensor == MOE_LAYER_ATTN_NORM      ? MOE_LAYER_ATTN_NORM_BIAS
               : tensor == MOE_LAYER_FFN_NORM     ? MOE_LAYER_FFN_NORM_BIAS
               : tensor == MOE_TENSOR_OUTPUT_NORM ? MOE_TENSOR_OUTPUT_NORM_BIAS
                                                  : MOE_TENSOR_NONE;
    bool mean = c->norm == MOE_NORM_MEAN;
    moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                          .n = c->n_embd,
                          .tensor = tensor,
                          .bias = mean ? bias : MOE_TENSOR_NONE,
                          .x = moe_all_of(from, c->n_embd),
                          .y = moe_all_of(to, c->n_embd),
                          .u.norm = {.mean = mean, .eps = c->norm_eps}});
}

moe_op_output moe_build_output(int tensor, uint32_t first, uint32_t n, moe_value to)
{
    return (moe_op_output){
        .to = moe_all_of(to, n), .tensor = tensor, .bias = MOE_TENSOR_NONE, .first = first, .n = n};
}

void moe_build_linears(moe_program_builder *b, moe_value from, uint32_t n,
                       const moe_op_output *outputs, uint32_t n_outputs)
{
    moe_op op = {.kind = MOE_OP_LINEAR,
                 .n = n,
                 .tensor = MOE_TENSOR_NONE,
                 .bias = MOE_TENSOR_NONE,
                 .x = moe_all_of(from, n),
                 .u.linear.n_outputs = n_outputs};
    memcpy(op.u.linear.outputs, outputs, n_outputs * sizeof *outputs);
    moe_build(b, op);
}

void moe_build_linear(moe_program_builder *b, moe_value from, uint32_t n, int tensor,
                      uint32_t n_out, int bias, moe_value to)
{
    moe_op_output output = moe_build_output(tensor, 0, n_out, to);
    output.bias = bias;
    moe_build_linears(b, from, n, &output, 1);
}

static void change(moe_program_builder *b, moe_op_kind kind, moe_value value, uint32_t n,
                   float factor)
{
    moe_build(b, (moe_op){.kind = kind,
                          .n = n,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(value, n),
                          .y = moe_all_of(value, n),
                          .factor = factor});
}

void moe_build_scale(moe_program_builder *b, moe_value value, uint32_t n, float factor)
{
    if (factor != 1.0f) {
        change(b, MOE_OP_SCALE, value, n, factor);
    }
}

void moe_build_cap(moe_program_builder *b, moe_value value, uint32_t n, float cap)
{
    if (cap != 0.0f) {
        change(b, MOE_OP_SOFT_CAP, value, n, cap);
    }
}

void moe_build_copy(moe_program_builder *b, moe_operand from, moe_operand to, uint32_t n,
                    uint32_t each)
{
    moe_build(b, (moe_op){.kind = MOE_OP_COPY,
                          .n = n,
                          .each = each,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = from,
                          .y = to});
}

void moe_build_add(moe_program_builder *b, moe_value a, moe_value other, moe_value to, uint32_t n)
{
    moe_build(b, (moe_op){.kind = MOE_OP_ADD,
                          .n = n,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(a, n),
                          .y = moe_all_of(to, n),
                          .z = moe_all_of(other, n)});
}
