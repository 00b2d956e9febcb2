/* SPDX-License-Identifier: MIT */
/* gpt-oss: attention sinks, a window in every other layer, biases of router and experts, and a
 * clamped SwiGLU whose numbers are in no metadata key. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void adjust(moe_model_config *config)
{
    config->yarn_fractions = true;
}

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){
                           .attention.sinks = MOE_SINKS_ALL,
                           .networks = {.activation = {MOE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 7.0f},
                                        .biases = true}});
}

const moe_family moe_family_gpt_oss = {
    .architecture = "gpt-oss",
    .name = "gpt-oss",
    .window_period = 2,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX_SELECTED,
    .aliases = {{MOE_LAYER_FFN_NORM, "post_attention_norm.weight"}},
    .adjust = adjust,
    .layer = write_layer,
};
