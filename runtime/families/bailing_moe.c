/* SPDX-License-Identifier: MIT */
/* Ling, whose architecture is called Bailing. In its third generation most layers have a delta rule
 * with a decay for each channel; the others have latent attention with a gate for each head. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_bailingmoe = {
    .architecture = "bailingmoe",
    .name = "Ling",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD,
    .layer = moe_write_usual,
};

const moe_family moe_family_bailingmoe2 = {
    .architecture = "bailingmoe2",
    .name = "Ling 2.0",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    .layer = moe_write_head_normed,
};

static void write_gated(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.gate = MOE_ATTENTION_GATE_HEADS});
}

const moe_family moe_family_bailingmoe3 = {
    .architecture = "bailingmoe3",
    .name = "Ling 3.0",
    .attention = MOE_ATTENTION_MLA,
    .recurrence = MOE_RECURRENCE_CHANNELS,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_LIMITS | MOE_KEY_DECAY_BOUND,
    .layer = write_gated,
};
