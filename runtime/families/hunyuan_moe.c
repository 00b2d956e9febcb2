/* SPDX-License-Identifier: MIT */
/* Hunyuan. The oldest model norms heads after their rotary embedding. The fourth has several
 * residual streams, and latent attention with gates, sinks and indexers. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_hy_v3 = {
    .architecture = "hy_v3",
    .name = "Hunyuan-3",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD,
    .layer = moe_write_head_normed,
};

static void write_older(moe_program_builder *b)
{
    moe_write_layer(
        b, &(moe_layer_form){.attention = {.qk_norm = MOE_QK_NORM_HEAD, .norm_after_rope = true}});
}

const moe_family moe_family_hunyuan_moe = {
    .architecture = "hunyuan-moe",
    .name = "Hunyuan-MoE",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .shared = MOE_SHARED_TENSORS,
    .layer = write_older,
};

static void write_streams(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention = {.gate = MOE_ATTENTION_GATE_OWN,
                                                       .sinks = MOE_SINKS_ALL,
                                                       .index_rope = MOE_ROPE_INTERLEAVED,
                                                       .index_as_heads = true},
                                         .networks.limits_gate = true});
}

const moe_family moe_family_hy_v4 = {
    .architecture = "hy_v4",
    .name = "Hunyuan-4",
    .attention = MOE_ATTENTION_MLA,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_INDEXER |
            MOE_KEY_LIMITS | MOE_KEY_STREAMS,
    .layer = write_streams,
};
