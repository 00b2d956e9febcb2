/* SPDX-License-Identifier: MIT */
/* Nemotron-H. Each layer is either a state space, attention, or a network. Networks have no gate
 * matrix, and their activation is a squared ReLU. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){
                           .networks = {.activation.kind = MOE_ACTIVATION_RELU, .no_gate = true}});
}

const moe_family moe_family_nemotron_h_moe = {
    .architecture = "nemotron_h_moe",
    .name = "Nemotron-H-MoE",
    .norm_key_of_means = true,
    .single_parts = true,
    .recurrence = MOE_RECURRENCE_SPACE,
    .rope = MOE_ROPE_HALVES,
    .no_rope = true,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_GROUPS | MOE_KEY_LATENT,
    .aliases = {{MOE_LAYER_FFN_NORM, "attn_norm.weight"}},
    .layer = write_layer,
};
