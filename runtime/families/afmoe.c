/* SPDX-License-Identifier: MIT */
/* Trinity. Attention's output has a gate, projected by a matrix of its own. The outputs of
 * attention and network are normed before they are added. */
#include <math.h>

#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void adjust(moe_model_config *config)
{
    config->embedding_scale *= sqrtf((float)config->n_embd);
}

static void write_layer(moe_program_builder *b)
{
    const moe_attention_form attention = {
        .qk_norm = MOE_QK_NORM_HEAD, .gate = MOE_ATTENTION_GATE_OWN, .post_norm = true};
    moe_write_layer(
        b, &(moe_layer_form){.attention = attention, .post_norm = MOE_LAYER_FFN_POST_NORM});
}

const moe_family moe_family_afmoe = {
    .architecture = "afmoe",
    .name = "Trinity",
    .rope_in_windows = true,
    .window_period = 4,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD,
    .adjust = adjust,
    .layer = write_layer,
};
