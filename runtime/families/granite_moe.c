/* SPDX-License-Identifier: MIT */
/* Granite: factors of the embeddings, of the layers' outputs and of the logits. Granite-4 H has
 * state spaces in most layers; the third family here has windows and attention sinks. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void divide_logits(moe_model_config *config)
{
    config->logit_scale = 1 / config->logit_scale;
}

const moe_family moe_family_granitemoe = {
    .architecture = "granitemoe",
    .name = "Granite-MoE",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX_SELECTED,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_SCALES,
    .adjust = divide_logits,
    .layer = moe_write_usual,
};

const moe_family moe_family_granitehybrid = {
    .architecture = "granitehybrid",
    .name = "Granite-4 H",
    .recurrence = MOE_RECURRENCE_SPACE,
    .rope = MOE_ROPE_INTERLEAVED,
    .rope_if_finetuned = true,
    .gate = MOE_GATE_SOFTMAX_SELECTED,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_SCALES,
    .adjust = divide_logits,
    .layer = moe_write_usual,
};

static void write_windows(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.sinks = MOE_SINKS_ALL});
}

const moe_family moe_family_granite_swa = {
    .architecture = "granite_swa",
    .name = "Granite SWA",
    .window_period = 4,
    .window_last = true,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX_SELECTED,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .keys = MOE_KEY_SCALES | MOE_KEY_ROPE_LIST,
    .adjust = divide_logits,
    .layer = write_windows,
};
