/* SPDX-License-Identifier: MIT */
/* The parts of a routed expert besides its three matrices: biases, which are resident, and the
 * activation that joins gate and up. */
#ifndef MOE_PASS_EXPERT_FORM_H
#define MOE_PASS_EXPERT_FORM_H

#include "runtime/pass/runner.h"

/* The expert's row of a tensor [n_expert][..]; NULL if the model has none. */
static inline const float *moe_expert_bias(const moe_runner *runner, uint32_t layer, int tensor,
                                           uint32_t expert)
{
    const moe_weight *biases = moe_layer_weight(runner, layer, tensor);
    return biases->data != NULL
               ? (const float *)((const uint8_t *)biases->data + expert * biases->row_bytes)
               : NULL;
}

/* limit: of the layer's kind, 0 without one. */
static inline moe_activation moe_activation_of(const moe_model_config *c, float limit)
{
    switch (c->activation) {
    case MOE_FF_SWIGLU_CLAMPED:
        return (moe_activation){MOE_ACTIVATION_SWIGLU_CLAMPED, c->swiglu_alpha, c->swiglu_limit};
    case MOE_FF_GELU:
        return (moe_activation){MOE_ACTIVATION_GELU, 0, 0};
    case MOE_FF_RELU:
        return (moe_activation){MOE_ACTIVATION_RELU, 0, 0};
    case MOE_FF_SILU:
        break;
    }
    return (moe_activation){limit > 0 ? MOE_ACTIVATION_SILU_LIMITED : MOE_ACTIVATION_SILU, 0,
                            limit};
}

/* What the routed experts read. */
static inline const float *moe_experts_x(const moe_runner *runner)
{
    const moe_pass_buffers *b = &runner->buffers;
    if (moe_experts_are_latent(runner->config)) {
        return b->latent;
    }
    return runner->config->experts_input == MOE_EXPERTS_LAYER_NORM ? b->layer_norm : b->norm;
}

/* What latent experts read, from buffers->norm. */
static inline int moe_project_latent(moe_runner *runner, uint32_t layer, uint32_t n_rows,
                                     moe_error *err)
{
    const moe_pass_buffers *b = &runner->buffers;
    if (!moe_experts_are_latent(runner->config)) {
        return MOE_OK;
    }
    moe_linear in = {*moe_layer_weight(runner, layer, MOE_LAYER_LATENT_IN), NULL, b->latent};
    return runner->device->ops->linear(runner->device, b->norm, n_rows, runner->config->n_embd, &in,
                                       1, err);
}

/* Input scales of the plan's rows first, first + 1, ..; NULL if there are none. */
static inline const float *moe_input_scales(const moe_runner *runner, uint32_t first)
{
    return runner->config->gate_scales_input ? runner->buffers.input_scales + first : NULL;
}

/* The work of an expert of a layer, without its rows. */
static inline moe_expert_work moe_expert_work_of(const moe_runner *runner, uint32_t layer,
                                                 uint32_t expert, const moe_expert_view *view)
{
    return (moe_expert_work){
        .gate = view->parts[MOE_EXPERT_GATE],
        .up = view->parts[MOE_EXPERT_UP],
        .down = view->parts[MOE_EXPERT_DOWN],
        .gate_bias = moe_expert_bias(runner, layer, MOE_LAYER_EXPERTS_GATE_BIAS, expert),
        .up_bias = moe_expert_bias(runner, layer, MOE_LAYER_EXPERTS_UP_BIAS, expert),
        .down_bias = moe_expert_bias(runner, layer, MOE_LAYER_EXPERTS_DOWN_BIAS, expert),
        .activation =
            moe_activation_of(runner->config, runner->config->layers[layer].expert_limit)};
}

#endif
