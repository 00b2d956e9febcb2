/* SPDX-License-Identifier: MIT */
/* MiniMax. M3 has the clamped SwiGLU of gpt-oss, whose numbers are in no metadata key. In M3 each
 * group of heads chooses the blocks of positions that it attends to. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_minimax_m2 = {
    .architecture = "minimax-m2",
    .name = "MiniMax-M2",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .layer = moe_write_full_normed,
};

static void write_m3(moe_program_builder *b)
{
    moe_write_layer(
        b, &(moe_layer_form){.attention.qk_norm = MOE_QK_NORM_HEAD,
                             .networks.activation = {MOE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 7.0f}});
}

const moe_family moe_family_minimax_m3 = {
    .architecture = "minimax-m3",
    .name = "MiniMax-M3",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_INDEXER | MOE_KEY_BLOCK_INDEX,
    .aliases = {{MOE_LAYER_INDEX_Q, "indexer.q_proj.weight"},
                {MOE_LAYER_INDEX_K, "indexer.k_proj.weight"}},
    .layer = write_m3,
};
