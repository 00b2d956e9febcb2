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

static inline moe_activation moe_expert_activation(const moe_model_config *config)
{
    bool clamped = config->swiglu_alpha != 0.0f;
    return (moe_activation){clamped ? MOE_ACTIVATION_SWIGLU_CLAMPED : MOE_ACTIVATION_SILU,
                            config->swiglu_alpha, config->swiglu_limit};
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
        .activation = moe_expert_activation(runner->config)};
}

#endif
