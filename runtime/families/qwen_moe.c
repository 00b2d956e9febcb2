/* SPDX-License-Identifier: MIT */
/* Qwen. From Qwen3 on, heads are normed. Qwen2-MoE and the hybrids have a shared expert behind a
 * gate. In the hybrids most layers have a gated delta rule. Their other layers have attention with
 * gated output; the rows of the queries' matrix also hold the gates. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_qwen2moe = {
    .architecture = "qwen2moe",
    .name = "Qwen2-MoE",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .shared = MOE_SHARED_GATED,
    .layer = moe_write_usual,
};

const moe_family moe_family_qwen3moe = {
    .architecture = "qwen3moe",
    .name = "Qwen3-MoE",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .layer = moe_write_head_normed,
};

const moe_family moe_family_qwen3vlmoe = {
    .architecture = "qwen3vlmoe",
    .name = "Qwen3-VL-MoE",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .keys = MOE_KEY_SECTIONS,
    .layer = moe_write_head_normed,
};

static void write_hybrid(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention = {.qk_norm = MOE_QK_NORM_HEAD,
                                                       .gate = MOE_ATTENTION_GATE_JOINED}});
}

const moe_family moe_family_qwen3next = {
    .architecture = "qwen3next",
    .name = "Qwen3-Next",
    .recurrence = MOE_RECURRENCE_DELTA,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .shared = MOE_SHARED_GATED,
    .aliases = {{MOE_LAYER_FFN_NORM, "post_attention_norm.weight"}},
    .layer = write_hybrid,
};

/* Head h has the keys of key head h % n_key_head. */
static void tile_heads(moe_model_config *config)
{
    config->recurrence.tiled = true;
}

const moe_family moe_family_qwen35moe = {
    .architecture = "qwen35moe",
    .name = "Qwen3.5-MoE",
    .recurrence = MOE_RECURRENCE_DELTA,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .shared = MOE_SHARED_GATED,
    .keys = MOE_KEY_SECTIONS,
    .aliases = {{MOE_LAYER_FFN_NORM, "post_attention_norm.weight"}},
    .adjust = tile_heads,
    .layer = write_hybrid,
};
