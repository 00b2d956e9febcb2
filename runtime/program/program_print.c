/* SPDX-License-Identifier: MIT */
/* Writes programs as text: one line for each operation, in the notation of a paper. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/tensor_claims.h"
#include "runtime/program/program.h"

static const char *value_name(moe_value value)
{
    return moe_value_info_of(value)->name;
}

static void put_tensor(FILE *to, const moe_program *program, int tensor)
{
    static const char *const drafts[MOE_DRAFT_TENSORS] = {
        [MOE_DRAFT_JOIN] = "join",
        [MOE_DRAFT_TOKEN_NORM] = "token_norm",
        [MOE_DRAFT_HIDDEN_NORM] = "hidden_norm",
        [MOE_DRAFT_FEATURES_NORM] = "features_norm",
    };
    static const char *const globals[] = {"token_embd",      "output_norm",    "output_norm.bias",
                                          "output",          "output.bias",    "1",
                                          "output_hc_fn",    "output_hc_base", "output_hc_scale",
                                          "output_hc_norm",  "output_hc_down", "output_hc_up",
                                          "output_res_score"};
    _Static_assert(sizeof globals / sizeof globals[0] ==
                       MOE_TENSOR_DRAFT - MOE_TENSOR_TOKEN_EMBEDDING,
                   "a name for each tensor outside the layers");
    static const char ending[] = ".weight";
    const char *name = tensor >= MOE_TENSOR_DRAFT ? drafts[tensor - MOE_TENSOR_DRAFT]
                       : tensor >= MOE_TENSOR_TOKEN_EMBEDDING
                           ? globals[tensor - MOE_TENSOR_TOKEN_EMBEDDING]
                           : moe_tensor_name(program->config, (moe_layer_tensor)tensor);
    size_t size = strlen(name), n = sizeof ending - 1;
    bool ends = size > n && strcmp(name + size - n, ending) == 0;
    fprintf(to, "%.*s", (int)(ends ? size - n : size), name);
}

/* Writes the operand; if it is a part of a vector, also which part. */
static void put_operand(FILE *to, const moe_operand *o, uint32_t n)
{
    fputs(value_name(o->value), to);
    if (n != o->stride) {
        fprintf(to, "[%" PRIu32 ":%" PRIu32 "]", o->at, o->at + n);
    }
}

static void put_heads(FILE *to, const moe_op *op, uint32_t n)
{
    if (op->each > 1) {
        fprintf(to, ", %" PRIu32 " heads of %" PRIu32, op->each, n);
    }
}

static void put_norm(FILE *to, const moe_program *program, const moe_op *op)
{
    put_operand(to, &op->y, op->n);
    fputs(op->u.norm.mean ? " = layer_norm(" : " = rms_norm(", to);
    put_operand(to, &op->x, op->n);
    fputs(") * ", to);
    put_tensor(to, program, op->tensor);
    if (op->u.norm.weight_at > 0) {
        fprintf(to, "[%" PRIu32 ":%" PRIu32 "]", op->u.norm.weight_at,
                op->u.norm.weight_at + op->n);
    }
    if (op->bias != MOE_TENSOR_NONE) {
        fputs(" + ", to);
        put_tensor(to, program, op->bias);
    }
    put_heads(to, op, op->n);
}

static void put_linear(FILE *to, const moe_program *program, const moe_op *op)
{
    for (uint32_t i = 0; i < op->u.linear.n_outputs; i++) {
        fprintf(to, "%s%s", i > 0 ? ", " : "", value_name(op->u.linear.outputs[i].to.value));
    }
    fputs(" = ", to);
    for (uint32_t i = 0; i < op->u.linear.n_outputs; i++) {
        const moe_op_output *out = &op->u.linear.outputs[i];
        fputs(i > 0 ? ", " : "", to);
        put_tensor(to, program, out->tensor);
        bool goes_on = i + 1 < op->u.linear.n_outputs && out[1].tensor == out->tensor;
        if (out->first > 0 || goes_on) {
            fprintf(to, "[%" PRIu32 ":%" PRIu32 "]", out->first, out->first + out->n);
        }
        fprintf(to, " . %s", value_name(op->x.value));
        if (out->bias != MOE_TENSOR_NONE) {
            fputs(" + ", to);
            put_tensor(to, program, out->bias);
        }
    }
}

static const char *activation_name(const moe_activation *a)
{
    static const char *const names[] = {
        [MOE_ACTIVATION_SILU] = "silu",
        [MOE_ACTIVATION_SWIGLU_CLAMPED] = "clamped silu",
        [MOE_ACTIVATION_SILU_LIMITED] = "limited silu",
        [MOE_ACTIVATION_SILU_CLAMPED] = "silu of clamped",
        [MOE_ACTIVATION_GELU] = "gelu",
        [MOE_ACTIVATION_RELU] = "relu",
        [MOE_ACTIVATION_SITU] = "situ",
    };
    return names[a->kind];
}

static void put_gate(FILE *to, const moe_op *op)
{
    static const char *const names[] = {
        [MOE_GATING_SIGMOID] = "sigmoid(",
        [MOE_GATING_SILU] = "silu(",
        [MOE_GATING_PLAIN] = "(",
        [MOE_GATING_SOFTPLUS] = "softplus(",
    };
    fprintf(to, "%s = %s * %s", value_name(op->y.value), value_name(op->x.value),
            names[op->u.gate.kind]);
    put_operand(to, &op->z, op->u.gate.one ? 1 : op->n);
    fputs(")", to);
    put_heads(to, op, op->n);
    fputs(op->u.gate.one && op->each > 1 ? ", one gate each" : "", to);
}

static void put_choose(FILE *to, const moe_program *program, const moe_op *op)
{
    const moe_model_config *c = program->config;
    if (op->kind == MOE_OP_POOL && c->index_means) {
        fprintf(to,
                "cache = cache, for each pool of %" PRIu32 " the norm of its keys' mean, turned, "
                "by ",
                c->index_pool);
        put_tensor(to, program, op->tensor);
        return;
    }
    if (op->kind == MOE_OP_POOL) {
        fprintf(to,
                "cache = cache, for each pool of %" PRIu32 " the sum of its keys, by softmax of "
                "gates + ",
                c->index_pool);
        put_tensor(to, program, op->tensor);
        return;
    }
    if (op->kind == MOE_OP_COMPRESS) {
        fprintf(to,
                "compressed = of each block of %" PRIu32 " the sum of its keys, by softmax of "
                "gates + ",
                op->u.attend.rate);
        put_tensor(to, program, MOE_LAYER_COMPRESS_PLACE);
        return;
    }
    if (c->index_block > 0) {
        fprintf(to,
                "chosen_positions = for each group of heads the last %" PRIu32 " of blocks of "
                "%" PRIu32 " and the best others, %" PRIu32 " together, by %s",
                c->index_local, c->index_block, c->index_top_k / c->index_block,
                value_name(op->x.value));
        put_heads(to, op, op->n);
        return;
    }
    fprintf(to, "chosen_positions = the %" PRIu32 " best", c->index_top_k / c->index_pool);
    fputs(c->index_pool > 1 ? " pools and the positions behind the last, by " : " by ", to);
    fputs(value_name(op->x.value), to);
    if (op->z.value != MOE_VALUE_NONE) {
        fprintf(to, ", %s", value_name(op->z.value));
    }
    put_heads(to, op, op->n);
}

static void put_attend(FILE *to, const moe_program *program, const moe_op *op)
{
    const uint32_t n_kv = op->u.attend.n_kv;
    fprintf(to,
            "%s = attention(%s, cache), %" PRIu32 " heads of %" PRIu32 " on %" PRIu32 ", scale %g",
            value_name(op->y.value), value_name(op->x.value), op->each, op->n, n_kv,
            (double)op->factor);
    if (op->u.attend.window > 0) {
        fprintf(to, ", window %" PRIu32, op->u.attend.window);
    }
    if (op->u.attend.rate > 0) {
        fprintf(to, " beside %scompressed keys of %" PRIu32,
                op->u.attend.indexer != MOE_INDEXER_NONE ? "the chosen " : "", op->u.attend.rate);
    }
    if (op->u.attend.chunk > 0) {
        fprintf(to, ", chunks of %" PRIu32, op->u.attend.chunk);
    }
    if (op->u.attend.cap != 0.0f) {
        fprintf(to, ", scores capped at %g", (double)op->u.attend.cap);
    }
    fputs(op->u.attend.scales_rows ? ", queries scaled by position" : "", to);
    const bool positions = op->u.attend.indexer != MOE_INDEXER_NONE && op->u.attend.rate == 0;
    fputs(positions ? ", at the chosen positions" : "", to);
    if (op->tensor != MOE_TENSOR_NONE) {
        fputs(", sinks ", to);
        put_tensor(to, program, op->tensor);
    }
}

static void put_route(FILE *to, const moe_program *program, const moe_op *op)
{
    static const char *const gates[] = {
        [MOE_GATE_SOFTMAX] = "softmax",
        [MOE_GATE_SIGMOID] = "sigmoid",
        [MOE_GATE_SOFTMAX_SELECTED] = "softmax of the chosen",
        [MOE_GATE_SQRT_SOFTPLUS] = "sqrt(softplus)",
        [MOE_GATE_SPARSE_MIXER] = "sparse mixer",
    };
    const moe_model_config *c = program->config;
    fprintf(to, "chosen, weights = route(%s), %" PRIu32 " of %" PRIu32 " by %s",
            value_name(op->x.value), c->n_expert_used, c->n_expert, gates[c->gate]);
    const bool table = op->tensor == MOE_LAYER_ROUTER_TABLE;
    fputs(table ? ", those of the token by " : "", to);
    if (table || c->gate_selection_bias) {
        fputs(table ? "" : " + ", to);
        put_tensor(to, program, op->tensor);
    }
    if (c->n_group > 1) {
        fprintf(to, ", from %" PRIu32 " of %" PRIu32 " groups", c->n_group_used, c->n_group);
    }
    fputs(c->gate_renormalise ? ", weights of sum 1" : "", to);
    if (c->gate_scale != 1.0f) {
        fprintf(to, ", times %g", (double)c->gate_scale);
    }
    if (op->bias != MOE_TENSOR_NONE) {
        fputs(", times ", to);
        put_tensor(to, program, op->bias);
    }
}

static void put_experts(FILE *to, const moe_op *op)
{
    fprintf(to, "%s = chosen experts(%s), %s%s, %" PRIu32 " wide%s%s", value_name(op->y.value),
            value_name(op->x.value), activation_name(&op->u.experts.activation),
            op->u.experts.no_gate ? " without a gate's matrix" : "", op->u.experts.n_inner,
            op->bias != MOE_TENSOR_NONE ? ", with biases" : "",
            op->u.experts.scales_inputs ? ", weights times inputs" : "");
}

static void put_network(FILE *to, const moe_program *program, const moe_op *op)
{
    const char *x = value_name(op->x.value);
    fprintf(to, "%s = ", value_name(op->y.value));
    put_tensor(to, program, op->tensor + 2);
    fprintf(to, " . (%s(", activation_name(&op->u.experts.activation));
    put_tensor(to, program, op->tensor + op->u.experts.no_gate);
    fprintf(to, " . %s) * ", x);
    put_tensor(to, program, op->tensor + 1);
    fprintf(to, " . %s), %" PRIu32 " wide", x, op->u.experts.n_inner);
}

static void put_states(FILE *to, const moe_program *program, const moe_op *op)
{
    const moe_recurrence *c = &program->config->recurrence;
    switch (op->kind) {
    case MOE_OP_STATES:
        fprintf(to,
                "%s = of each sequence's tokens, one after the other:", value_name(op->y.value));
        return;
    case MOE_OP_NGRAM_CONVOLVE:
        fprintf(to, "%s = silu of convolution(%s), tokens %" PRIu32 " apart",
                value_name(MOE_VALUE_NGRAM_OUT), value_name(MOE_VALUE_NGRAM_MIXED),
                program->config->ngrams.ngram_size);
        break;
    case MOE_OP_CONVOLVE:
        fprintf(to, "%s = %sshort convolution(%s)",
                value_name(op->y.value != MOE_VALUE_NONE ? op->y.value : MOE_VALUE_STATE_OUT),
                op->y.value != MOE_VALUE_NONE ? "silu of " : "", value_name(MOE_VALUE_MIXED));
        break;
    case MOE_OP_DELTA_RULE:
    case MOE_OP_CHANNEL_RULE:
        fprintf(to,
                "%s = %s(silu of short convolution(%s), %s), %" PRIu32 " heads of %" PRIu32
                " x %" PRIu32,
                value_name(MOE_VALUE_STATE_OUT),
                op->kind == MOE_OP_DELTA_RULE ? "gated delta rule" : "delta rule by channel",
                value_name(MOE_VALUE_MIXED), value_name(MOE_VALUE_STATE_GATES), c->n_head,
                c->key_dim, c->value_dim);
        if (op->factor != 0.0f) {
            fprintf(to, ", decays from exp(%g) on", (double)op->factor);
        }
        break;
    case MOE_OP_STATE_SPACE:
        fprintf(to,
                "%s = state space(silu of short convolution(%s), %s), %" PRIu32 " heads of %" PRIu32
                " x %" PRIu32 " in %" PRIu32 " group%s",
                value_name(MOE_VALUE_STATE_OUT), value_name(MOE_VALUE_MIXED),
                value_name(MOE_VALUE_STATE_GATES), c->n_head, c->key_dim, c->value_dim,
                c->n_key_head, c->n_key_head == 1 ? "" : "s");
        break;
    default:
        fprintf(to, "%s = selective scan(%s, %s, %s, %s), %" PRIu32 " states a channel",
                value_name(MOE_VALUE_STATE_OUT), value_name(MOE_VALUE_CONVOLVED),
                value_name(MOE_VALUE_STEPS), value_name(MOE_VALUE_SCAN_K),
                value_name(MOE_VALUE_SCAN_Q), c->key_dim);
        break;
    }
    fputs(", by ", to);
    put_tensor(to, program, op->tensor);
}

static void put_elementwise(FILE *to, const moe_program *program, const moe_op *op)
{
    const char *x = value_name(op->x.value), *y = value_name(op->y.value);
    switch (op->kind) {
    case MOE_OP_CLAMP:
        fprintf(to, "%s = clamp(%s, %g)", y, x, (double)op->factor);
        break;
    case MOE_OP_SOFT_CAP:
        fprintf(to, "%s = cap(%s, %g)", y, x, (double)op->factor);
        break;
    case MOE_OP_ADD:
        fprintf(to, "%s = %s + %s", y, x, value_name(op->z.value));
        break;
    case MOE_OP_COPY:
        put_operand(to, &op->y, op->n);
        fputs(" = ", to);
        put_operand(to, &op->x, op->n);
        put_heads(to, op, op->n);
        break;
    default:
        fprintf(to, "%s = %s * ", y, x);
        if (op->tensor != MOE_TENSOR_NONE) {
            put_tensor(to, program, op->tensor);
        } else {
            fprintf(to, "%g", (double)op->factor);
        }
        break;
    }
}

/* READ and WRITE. The weights of READ are those of the sum alone, or followed by those of WRITE. */
static void put_streams(FILE *to, const moe_program *program, const moe_op *op)
{
    const moe_operand *weights = &op->u.streams.weights;
    const char *mixed = op->u.streams.mixings > 0 ? "mixed " : "";
    if (op->kind == MOE_OP_WRITE && weights->value == MOE_VALUE_NONE) {
        const uint32_t begins = op->u.streams.begins;
        const char *x = value_name(op->x.value), *z = value_name(op->z.value);
        if (begins > 0) {
            fprintf(to, "%s[%" PRIu32 "] = %s[0], then %s[0] = %s", x, begins, x, x, z);
        } else {
            fprintf(to, "%s[0] = %s[0] + %s", x, x, z);
        }
        return;
    }
    if (op->kind == MOE_OP_WRITE) {
        fprintf(to, "%s = %s%s + ", value_name(op->y.value), mixed, value_name(op->x.value));
        put_operand(to, weights, op->each);
        fprintf(to, " * %s, %" PRIu32 " streams", value_name(op->z.value), op->each);
        return;
    }
    if (op->z.value != MOE_VALUE_NONE) {
        fprintf(to, "%s = mean of sigmoid(%s) * %s, %" PRIu32 " streams", value_name(op->y.value),
                value_name(op->z.value), value_name(op->x.value), op->each);
        if (weights->value != MOE_VALUE_NONE) {
            fprintf(to, "; %s = %g * sigmoid(%s / %" PRIu32 ")", value_name(weights->value),
                    (double)op->u.streams.magnitude, value_name(weights->value), op->each);
        }
        return;
    }
    fprintf(to, "%s = sum of ", value_name(op->y.value));
    if (op->u.streams.n_recalled > 0) {
        fprintf(to, "%s[:%" PRIu32 "], by softmax of norm(stream) . ", value_name(op->x.value),
                op->u.streams.n_recalled);
        put_tensor(to, program, op->tensor);
        return;
    }
    put_operand(to, weights, op->each);
    fprintf(to, " * streams of %s, weights sigmoid(%s * ", value_name(op->x.value),
            value_name(weights->value));
    put_tensor(to, program, op->tensor);
    fputs(" + ", to);
    put_tensor(to, program, op->bias);
    fprintf(to, ") + %g", (double)op->u.streams.eps);
    if (weights->stride > op->each) {
        fprintf(to, ", those behind times %g", (double)op->u.streams.magnitude);
    }
    if (op->u.streams.mixings > 0) {
        fprintf(to, ", mixing normed %" PRIu32 " times", op->u.streams.mixings);
    }
}

static void put_heads_op(FILE *to, const moe_program *program, const moe_op *op)
{
    put_operand(to, &op->y, op->kind == MOE_OP_ROPE ? op->n : op->u.n_out);
    fputs(" = ", to);
    if (op->kind == MOE_OP_ROPE) {
        fputs(op->u.rope.back ? "rope_back(" : "rope(", to);
        put_operand(to, &op->x, op->n);
        fprintf(to, "), %" PRIu32 " head%s, %s%s", op->each, op->each > 1 ? "s" : "",
                op->u.rope.interleaved ? "pairs" : "halves",
                op->u.rope.window ? ", by the window's frequencies" : "");
        return;
    }
    put_tensor(to, program, op->tensor);
    fputs(" . ", to);
    put_operand(to, &op->x, op->n);
    fprintf(to, ", of each of %" PRIu32 " heads", op->each);
}

static void put_op(FILE *to, const moe_program *program, const moe_op *op)
{
    switch (op->kind) {
    case MOE_OP_EMBED:
        fprintf(to, "%s = ", value_name(op->y.value));
        put_tensor(to, program, op->tensor);
        fputs("[token]", to);
        if (op->factor != 1.0f) {
            fprintf(to, " * %g", (double)op->factor);
        }
        break;
    case MOE_OP_SELECT:
        fprintf(to, "%s = rows of %s whose logits are wanted", value_name(op->y.value),
                value_name(op->x.value));
        break;
    case MOE_OP_NORM:
        put_norm(to, program, op);
        break;
    case MOE_OP_LINEAR:
        put_linear(to, program, op);
        break;
    case MOE_OP_HEAD_LINEAR:
    case MOE_OP_ROPE:
        put_heads_op(to, program, op);
        break;
    case MOE_OP_READ:
    case MOE_OP_WRITE:
        put_streams(to, program, op);
        break;
    case MOE_OP_GATE:
        put_gate(to, op);
        break;
    case MOE_OP_LOOK_UP:
        fprintf(to, "%s = table's rows[tokens]", value_name(op->y.value));
        break;
    case MOE_OP_MATCH:
        fprintf(to, "%s = sigmoid(root of %s . %s) * %s, %" PRIu32 " streams",
                value_name(op->y.value), value_name(op->x.value), value_name(op->z.value),
                value_name(op->u.match.value), op->each);
        break;
    case MOE_OP_KV_STORE:
        fprintf(to, "cache = cache, %s%s%s", value_name(op->x.value),
                op->z.value != MOE_VALUE_NONE ? ", " : "",
                op->z.value != MOE_VALUE_NONE ? value_name(op->z.value) : "");
        break;
    case MOE_OP_COMPRESS:
    case MOE_OP_POOL:
    case MOE_OP_CHOOSE:
        put_choose(to, program, op);
        break;
    case MOE_OP_ATTEND:
        put_attend(to, program, op);
        break;
    case MOE_OP_NETWORK:
        put_network(to, program, op);
        break;
    case MOE_OP_ROUTE:
        put_route(to, program, op);
        break;
    case MOE_OP_EXPERTS:
        put_experts(to, op);
        break;
    case MOE_OP_COMBINE:
        fprintf(to, "%s = sum of weights * %s", value_name(op->y.value), value_name(op->x.value));
        break;
    case MOE_OP_STATES:
    case MOE_OP_CONVOLVE:
    case MOE_OP_NGRAM_CONVOLVE:
    case MOE_OP_DELTA_RULE:
    case MOE_OP_STATE_SPACE:
    case MOE_OP_CHANNEL_RULE:
    case MOE_OP_SCAN:
        put_states(to, program, op);
        break;
    default:
        put_elementwise(to, program, op);
        break;
    }
}

void moe_program_name_op(const moe_program *program, const moe_op *op, char *text, size_t size)
{
    FILE *to = fmemopen(text, size, "w");
    text[0] = '\0';
    if (to != NULL) {
        setvbuf(to, NULL, _IONBF, 0); /* longer text is cut */
        put_op(to, program, op);
        fclose(to);
        text[size - 1] = '\0';
    }
}

/* ---- Whole programs ---- */

/* Writes a line for each operation. A line begins with + if a device may compute it in one call
 * with the line before. An empty line goes before the operation break_at. */
static void put_span(FILE *to, const moe_program *program, uint32_t first, uint32_t end,
                     uint32_t break_at)
{
    uint32_t step_end = 0, fused_end = 0;
    for (uint32_t i = first; i < end; i++) {
        const moe_op *op = &program->ops[i];
        fputs(i == break_at ? "\n" : "", to);
        fputs(i < step_end ? "      " : i < fused_end ? "+ " : "  ", to);
        put_op(to, program, op);
        fputs(op->if_choosing ? "   (if a row sees more positions)\n" : "\n", to);
        step_end = op->kind == MOE_OP_STATES ? i + 1 + op->u.states.n_step : step_end;
        fused_end = i + op->n_fused > fused_end ? i + op->n_fused : fused_end;
    }
}

/* *text: out, the text of one layer; the caller frees it. */
static int print_layer(const moe_program *program, uint32_t layer, char **text, moe_error *err)
{
    const moe_program_layer *l = &program->layers[layer];
    size_t size = 0;
    FILE *to = open_memstream(text, &size);
    if (to == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a program's text");
    }
    put_span(to, program, l->first, l->end, l->mixed > l->first ? l->mixed : l->end);
    bool failed = ferror(to) != 0;
    return fclose(to) == 0 && !failed
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for a program's text");
}

/* Writes "layers 0-3, 5": the layers whose text equals that of `layer`, which is the first. */
static void put_numbers(FILE *to, char *const *texts, uint32_t n, uint32_t layer)
{
    bool several = false;
    for (uint32_t i = layer + 1; i < n; i++) {
        several = several || (texts[i] != NULL && strcmp(texts[i], texts[layer]) == 0);
    }
    fputs(several ? "\nlayers" : "\nlayer", to);
    const char *between = " ";
    for (uint32_t i = layer; i < n; i++) {
        if (texts[i] == NULL || strcmp(texts[i], texts[layer]) != 0) {
            continue;
        }
        uint32_t last = i;
        while (last + 1 < n && texts[last + 1] != NULL &&
               strcmp(texts[last + 1], texts[layer]) == 0) {
            last++;
        }
        fprintf(to, last > i ? "%s%" PRIu32 "-%" PRIu32 : "%s%" PRIu32, between, i, last);
        between = ", ";
        i = last;
    }
    fputs("\n", to);
}

static void put_layers(FILE *to, char *const *texts, uint32_t n)
{
    for (uint32_t l = 0; l < n; l++) {
        bool again = false;
        for (uint32_t i = 0; i < l && texts[l] != NULL; i++) {
            again = again || (texts[i] != NULL && strcmp(texts[i], texts[l]) == 0);
        }
        if (texts[l] != NULL && !again) {
            put_numbers(to, texts, n, l);
            fputs(texts[l], to);
        }
    }
}

static int print_all(FILE *to, const moe_program *program, uint32_t layer, char **texts,
                     moe_error *err)
{
    const uint32_t n = program->config->n_layer;
    const bool all = layer == UINT32_MAX;
    int status = MOE_OK;
    for (uint32_t l = 0; l < n && status == MOE_OK; l++) {
        status = all || l == layer ? print_layer(program, l, &texts[l], err) : MOE_OK;
    }
    if (all) {
        fputs("before the layers\n", to);
        put_span(to, program, program->front.first, program->front.end, UINT32_MAX);
    }
    if (status == MOE_OK) {
        put_layers(to, texts, n);
    }
    if (all) {
        fputs("\nbehind the layers\n", to);
        put_span(to, program, program->back.first, program->back.end, UINT32_MAX);
    }
    return status;
}

int moe_program_print(const moe_program *program, uint32_t layer, char **text, moe_error *err)
{
    const uint32_t n = program->config->n_layer;
    size_t size = 0;
    *text = NULL;
    char **texts = moe_calloc(n, sizeof *texts);
    FILE *to = open_memstream(text, &size);
    int status = texts != NULL && to != NULL
                     ? print_all(to, program, layer, texts, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for a program's text");
    for (uint32_t l = 0; texts != NULL && l < n; l++) {
        free(texts[l]);
    }
    free(texts);
    if (to != NULL && (ferror(to) != 0) + (fclose(to) != 0) > 0 && status == MOE_OK) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for a program's text");
    }
    if (status != MOE_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}
