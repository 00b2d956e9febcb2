/* SPDX-License-Identifier: MIT */
#include "runtime/program/op_forms.h"

#include <stdio.h>

#include "runtime/base/error.h"

static uint64_t attend_forms(const moe_op *op)
{
    uint64_t forms = MOE_FORM_BIT(MOE_FORM_ATTEND);
    forms |= op->u.attend.cap != 0.0f ? MOE_FORM_BIT(MOE_FORM_ATTEND_CAPPED) : 0;
    forms |= op->u.attend.window > 0 ? MOE_FORM_BIT(MOE_FORM_ATTEND_WINDOW) : 0;
    forms |= op->u.attend.rate > 0 ? MOE_FORM_BIT(MOE_FORM_ATTEND_BESIDE) : 0;
    forms |= op->u.attend.chunk > 0 ? MOE_FORM_BIT(MOE_FORM_ATTEND_CHUNK) : 0;
    forms |= op->tensor != MOE_TENSOR_NONE ? MOE_FORM_BIT(MOE_FORM_ATTEND_SINKS) : 0;
    return forms | (op->u.attend.scales_rows ? MOE_FORM_BIT(MOE_FORM_ATTEND_SCALED) : 0);
}

static uint64_t gate_forms(const moe_op *op)
{
    switch (op->u.gate.kind) {
    case MOE_GATING_PLAIN:
        return MOE_FORM_BIT(MOE_FORM_GATE_PLAIN);
    case MOE_GATING_SOFTPLUS:
        return MOE_FORM_BIT(MOE_FORM_GATE_SOFTPLUS);
    default:
        return MOE_FORM_BIT(op->u.gate.one ? MOE_FORM_GATE_ROW : MOE_FORM_GATE);
    }
}

static uint64_t network_forms(const moe_op *op)
{
    static const moe_form activations[] = {
        [MOE_ACTIVATION_SILU] = MOE_FORM_EXPERTS,
        [MOE_ACTIVATION_SWIGLU_CLAMPED] = MOE_FORM_EXPERTS_CLAMPED,
        [MOE_ACTIVATION_SILU_LIMITED] = MOE_FORM_EXPERTS_LIMITED,
        [MOE_ACTIVATION_SILU_CLAMPED] = MOE_FORM_EXPERTS_SILU_CLAMPED,
        [MOE_ACTIVATION_GELU] = MOE_FORM_EXPERTS_GELU,
        [MOE_ACTIVATION_RELU] = MOE_FORM_EXPERTS_RELU,
        [MOE_ACTIVATION_SITU] = MOE_FORM_EXPERTS_SITU,
    };
    bool apart = op->kind == MOE_OP_EXPERTS && op->x.value != MOE_VALUE_NORM;
    uint64_t forms = MOE_FORM_BIT(activations[op->u.experts.activation.kind]);
    forms |= op->u.experts.no_gate ? MOE_FORM_BIT(MOE_FORM_EXPERTS_ONE_MATRIX) : 0;
    forms |= op->bias != MOE_TENSOR_NONE ? MOE_FORM_BIT(MOE_FORM_EXPERTS_BIASES) : 0;
    forms |= op->u.experts.scales_inputs ? MOE_FORM_BIT(MOE_FORM_EXPERTS_X_SCALES) : 0;
    return forms | (apart ? MOE_FORM_BIT(MOE_FORM_APART) : 0);
}

static uint64_t route_forms(const moe_program *program, const moe_op *op)
{
    const moe_gate_kind gate = program->config->gate;
    const moe_form form = gate == MOE_GATE_SPARSE_MIXER    ? MOE_FORM_ROUTE_SPARSE_MIXER
                          : gate == MOE_GATE_SQRT_SOFTPLUS ? MOE_FORM_ROUTE_SQRT_SOFTPLUS
                                                           : MOE_FORM_ROUTE;
    bool scales = op->bias != MOE_TENSOR_NONE; /* factors of the experts' weights */
    return MOE_FORM_BIT(form) |
           (op->tensor == MOE_LAYER_ROUTER_TABLE ? MOE_FORM_BIT(MOE_FORM_ROUTE_GIVEN) : 0) |
           (scales ? MOE_FORM_BIT(MOE_FORM_ROUTE_SCALES) : 0);
}

uint64_t moe_op_forms(const moe_program *program, const moe_op *op)
{
    /* STATES needs nothing besides the operations behind it. */
    static const uint64_t plain[MOE_OPS] = {
        [MOE_OP_EMBED] = MOE_FORM_BIT(MOE_FORM_EMBED),
        [MOE_OP_LINEAR] = MOE_FORM_BIT(MOE_FORM_LINEAR),
        [MOE_OP_HEAD_LINEAR] = MOE_FORM_BIT(MOE_FORM_HEAD_LINEAR),
        [MOE_OP_CLAMP] = MOE_FORM_BIT(MOE_FORM_CLAMP),
        [MOE_OP_SCALE] = MOE_FORM_BIT(MOE_FORM_SCALE),
        [MOE_OP_SOFT_CAP] = MOE_FORM_BIT(MOE_FORM_SOFT_CAP),
        [MOE_OP_ADD] = MOE_FORM_BIT(MOE_FORM_ADD),
        [MOE_OP_COPY] = MOE_FORM_BIT(MOE_FORM_COPY),
        [MOE_OP_LOOK_UP] = MOE_FORM_BIT(MOE_FORM_NGRAMS),
        [MOE_OP_MATCH] = MOE_FORM_BIT(MOE_FORM_NGRAMS),
        [MOE_OP_KV_STORE] = MOE_FORM_BIT(MOE_FORM_KV_STORE),
        [MOE_OP_CONVOLVE] = MOE_FORM_BIT(MOE_FORM_SHORT_CONV),
        [MOE_OP_NGRAM_CONVOLVE] = MOE_FORM_BIT(MOE_FORM_SHORT_CONV),
        [MOE_OP_DELTA_RULE] = MOE_FORM_BIT(MOE_FORM_DELTA_RULE),
        [MOE_OP_STATE_SPACE] = MOE_FORM_BIT(MOE_FORM_STATE_SPACE),
        [MOE_OP_CHANNEL_RULE] = MOE_FORM_BIT(MOE_FORM_CHANNEL_RULE),
        [MOE_OP_SCAN] = MOE_FORM_BIT(MOE_FORM_SELECTIVE_SCAN),
        [MOE_OP_COMBINE] = MOE_FORM_BIT(MOE_FORM_COMBINE),
        [MOE_OP_SELECT] = MOE_FORM_BIT(MOE_FORM_GATHER),
    };
    switch (op->kind) {
    case MOE_OP_NORM:
        return MOE_FORM_BIT(op->u.norm.mean ? MOE_FORM_MEAN_NORM : MOE_FORM_RMS_NORM);
    case MOE_OP_ROPE:
        return MOE_FORM_BIT(op->u.rope.window ? MOE_FORM_WINDOW_ROPE : MOE_FORM_ROPE) |
               (op->u.rope.back ? MOE_FORM_BIT(MOE_FORM_ROPE_BACK) : 0);
    case MOE_OP_READ:
        return MOE_FORM_BIT(op->z.value != MOE_VALUE_NONE  ? MOE_FORM_STREAM_GATES
                            : op->u.streams.n_recalled > 0 ? MOE_FORM_STREAM_RECALL
                                                           : MOE_FORM_STREAMS);
    case MOE_OP_WRITE:
        return MOE_FORM_BIT(op->u.streams.weights.value == MOE_VALUE_NONE ? MOE_FORM_STREAM_RECALL
                                                                          : MOE_FORM_STREAMS);
    case MOE_OP_GATE:
        return gate_forms(op);
    case MOE_OP_COMPRESS:
        return MOE_FORM_BIT(MOE_FORM_ATTEND_BESIDE);
    case MOE_OP_POOL:
        return MOE_FORM_BIT(MOE_FORM_CHOOSE_POOLS);
    case MOE_OP_CHOOSE:
        return MOE_FORM_BIT(program->config->index_pool > 1 ? MOE_FORM_CHOOSE_POOLS
                                                            : MOE_FORM_CHOOSE);
    case MOE_OP_ATTEND:
        return attend_forms(op);
    case MOE_OP_NETWORK:
    case MOE_OP_EXPERTS:
        return network_forms(op);
    case MOE_OP_ROUTE:
        return route_forms(program, op);
    default:
        return plain[op->kind];
    }
}

static const char *first_form(uint64_t forms)
{
    int form = 0;
    while (form < MOE_FORMS && (forms & MOE_FORM_BIT(form)) == 0) {
        form++;
    }
    return moe_form_name((moe_form)form);
}

int moe_program_check_device(const moe_program *program, const moe_device *device, moe_error *err)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const uint64_t lacks = program->ops[i].forms & ~device->forms;
        if (lacks == 0) {
            continue;
        }
        char where[32] = "outside the layers", op[128];
        if (program->ops[i].layer < program->config->n_layer) {
            snprintf(where, sizeof where, "layer %u", program->ops[i].layer);
        }
        moe_program_name_op(program, &program->ops[i], op, sizeof op);
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the device %s does not have what this model needs: %s (%s, '%s'); the CPU "
                        "does",
                        device->name, first_form(lacks), where, op);
    }
    return MOE_OK;
}

bool moe_program_is_within(const moe_program *program, moe_span span, uint64_t forms)
{
    bool within = true;
    for (uint32_t i = span.first; i < span.end; i++) {
        const moe_op *op = &program->ops[i];
        within = within && (op->if_choosing || (op->forms & ~forms) == 0);
    }
    return within;
}

/* Whether x is the only earlier value that the operations read. */
static bool reads_stream_alone(const moe_program *program, moe_span span)
{
    bool written[MOE_VALUES] = {[MOE_VALUE_NONE] = true, [MOE_VALUE_X] = true};
    bool known = true;
    for (uint32_t i = span.first; i < span.end; i++) {
        const moe_op *op = &program->ops[i];
        bool weighs =
            (op->kind == MOE_OP_READ && op->u.streams.n_recalled == 0) || op->kind == MOE_OP_WRITE;
        known = known && written[op->x.value] && written[op->z.value] &&
                (!weighs || written[op->u.streams.weights.value]) &&
                (op->kind != MOE_OP_MATCH || written[op->u.match.value]);
        moe_op_written outputs[MOE_MOST_OUTPUTS];
        const uint32_t n = moe_op_written_by(op, outputs);
        for (uint32_t o = 0; o < n; o++) {
            written[outputs[o].to.value] = true;
        }
    }
    return known;
}

static bool writes_stream(const moe_program *program, moe_span span)
{
    bool writes = false;
    for (uint32_t i = span.first; i < span.end; i++) {
        moe_op_written outputs[MOE_MOST_OUTPUTS];
        const uint32_t n = moe_op_written_by(&program->ops[i], outputs);
        for (uint32_t o = 0; o < n; o++) {
            writes = writes || outputs[o].to.value == MOE_VALUE_X;
        }
    }
    return writes;
}

bool moe_program_resumes_by_stream(const moe_program *program, uint32_t layer)
{
    const moe_program_layer *l = &program->layers[layer];
    return reads_stream_alone(program, (moe_span){l->mixed, l->end}) &&
           !writes_stream(program, (moe_span){l->mixed, l->rest});
}

static bool is_whole(const moe_operand *operand, uint32_t n)
{
    return operand->at == 0 && operand->stride == n;
}

bool moe_program_norms_experts_input(const moe_program *program, uint32_t layer)
{
    const moe_program_layer *l = &program->layers[layer];
    const moe_op *norm = &program->ops[l->mixed], *experts = &program->ops[l->rest + 1];
    const uint32_t n = program->config->n_expert_in;
    /* The norm is the last operation before `rest` that writes the experts' input. */
    bool is_last = true;
    for (uint32_t i = l->mixed + 1; i < l->rest; i++) {
        moe_op_written outputs[MOE_MOST_OUTPUTS];
        const uint32_t n_written = moe_op_written_by(&program->ops[i], outputs);
        for (uint32_t o = 0; o < n_written; o++) {
            is_last = is_last && outputs[o].to.value != experts->x.value;
        }
    }
    return is_last && norm->kind == MOE_OP_NORM && norm->each == 1 && norm->n == n &&
           norm->x.value == MOE_VALUE_X && program->n_floats[MOE_VALUE_X] == n &&
           is_whole(&norm->x, n) && norm->y.value == experts->x.value && is_whole(&norm->y, n);
}

bool moe_program_is_recordable(const moe_program *program, const moe_device *device)
{
    /* When a recorded pass stops, it keeps one stream of its rows. */
    if (device->recording == NULL || program->n_floats[MOE_VALUE_X] != program->config->n_embd) {
        return false;
    }
    const uint64_t forms = device->recording->forms;
    bool fits = moe_program_is_within(program, program->front, forms) &&
                moe_program_is_within(program, program->back, forms);
    for (uint32_t l = 0; l < program->config->n_layer && fits; l++) {
        const moe_program_layer *layer = &program->layers[l];
        fits = reads_stream_alone(program, (moe_span){layer->mixed, layer->end}) &&
               moe_program_is_within(program, (moe_span){layer->first, layer->end}, forms);
    }
    return fits;
}

/* Whether a layer attends to positions that an earlier layer has chosen. */
static bool takes_choice(const moe_program *program, const moe_program_layer *layer)
{
    bool takes = false, chooses = false;
    for (uint32_t i = layer->first; i < layer->end; i++) {
        const moe_op *op = &program->ops[i];
        chooses = chooses || op->kind == MOE_OP_CHOOSE;
        takes = takes ||
                (op->kind == MOE_OP_ATTEND && op->u.attend.indexer != MOE_INDEXER_NONE && !chooses);
    }
    return takes;
}

bool moe_program_carries_choice(const moe_program *program)
{
    bool carries = false;
    for (uint32_t l = 0; l < program->config->n_layer; l++) {
        carries = carries || takes_choice(program, &program->layers[l]);
    }
    return carries;
}

bool moe_program_is_by_stream(const moe_program *program)
{
    bool is = true;
    for (uint32_t l = 0; l < program->config->n_layer && is; l++) {
        const moe_program_layer *layer = &program->layers[l];
        is = reads_stream_alone(program, (moe_span){layer->first, layer->end});
    }
    return is;
}
