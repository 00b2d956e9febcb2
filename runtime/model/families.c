/* SPDX-License-Identifier: MIT */
/* The families with the usual forms: RMS norms, SiLU, no windows. */
#include "runtime/model/families.h"

#include <string.h>

#include "runtime/model/families_forms.h"

static const moe_family alike[] = {
    {
        .architecture = "llama",
        .name = "Mixtral",
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    },
    {
        .architecture = "olmoe",
        .name = "OLMoE",
        .qk_norm = MOE_QK_NORM_FULL,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SOFTMAX,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
        .keys = MOE_KEY_CLAMP_KQV,
    },
    {
        .architecture = "qwen2moe",
        .name = "Qwen2-MoE",
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SOFTMAX,
        .expert_width = MOE_EXPERT_WIDTH_SHARE,
        .shared = MOE_SHARED_GATED,
    },
    {
        .architecture = "qwen3moe",
        .name = "Qwen3-MoE",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_SHARE,
    },
    {
        .architecture = "qwen3next",
        .name = "Qwen3-Next",
        .qk_norm = MOE_QK_NORM_HEAD,
        .attention_gate = MOE_ATTENTION_GATE_JOINED,
        .recurrence = MOE_RECURRENCE_DELTA,
        .rope = MOE_ROPE_HALVES,
        .ffn_norm = "post_attention_norm.weight",
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_SHARE,
        .shared = MOE_SHARED_GATED,
    },
    {
        .architecture = "qwen35moe",
        .name = "Qwen3.5-MoE",
        .qk_norm = MOE_QK_NORM_HEAD,
        .attention_gate = MOE_ATTENTION_GATE_JOINED,
        .recurrence = MOE_RECURRENCE_DELTA,
        .heads_tiled = true,
        .rope = MOE_ROPE_HALVES,
        .ffn_norm = "post_attention_norm.weight",
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_SHARE,
        .shared = MOE_SHARED_GATED,
        .keys = MOE_KEY_SECTIONS,
    },
    {
        .architecture = "lfm2moe",
        .name = "LFM2-MoE",
        .qk_norm = MOE_QK_NORM_HEAD,
        .recurrence = MOE_RECURRENCE_CONVOLUTION,
        .rope = MOE_ROPE_HALVES,
        .output_norm = "token_embd_norm.weight",
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .gate_renormalise = true,
        .keys = MOE_KEY_DENSE_LEAD,
    },
    {
        .architecture = "deepseek",
        .name = "DeepSeek-MoE",
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD,
    },
    {
        .architecture = "deepseek2",
        .name = "DeepSeek-V2/V3",
        .attention = MOE_ATTENTION_MLA,
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_TEMPERATURE,
        .sigmoid_n_layer = 61,
        .sigmoid_n_expert = 256,
    },
    {
        .architecture = "kimi-linear",
        .name = "Kimi-Linear",
        .attention = MOE_ATTENTION_MLA,
        .recurrence = MOE_RECURRENCE_CHANNELS,
        .rope = MOE_ROPE_INTERLEAVED,
        .no_rope = true,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .gate_renormalise = true,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    },
    {
        .architecture = "deepseek32",
        .name = "DeepSeek-V3.2",
        .attention = MOE_ATTENTION_MLA,
        .rope = MOE_ROPE_INTERLEAVED,
        .index_rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_INDEXER,
    },
    {
        .architecture = "glm-dsa",
        .name = "GLM-5",
        .attention = MOE_ATTENTION_MLA,
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_SECTIONS |
                MOE_KEY_INDEXER,
    },
    {
        .architecture = "mistral4",
        .name = "Mistral-4",
        .attention = MOE_ATTENTION_MLA,
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_TEMPERATURE,
    },
    {
        .architecture = "glm4moe",
        .name = "GLM-4.5",
        .qk_norm = MOE_QK_NORM_HEAD,
        .qk_norm_optional = true,
        .rope = MOE_ROPE_HALVES,
        .ffn_norm = "post_attention_norm.weight",
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_SECTIONS,
    },
    {
        .architecture = "qwen3vlmoe",
        .name = "Qwen3-VL-MoE",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_SHARE,
        .keys = MOE_KEY_SECTIONS,
    },
    {
        .architecture = "minimax-m2",
        .name = "MiniMax-M2",
        .qk_norm = MOE_QK_NORM_FULL,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    },
    {
        .architecture = "granitemoe",
        .name = "Granite-MoE",
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX_SELECTED,
        .logit_divisor = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_SCALES,
    },
    {
        .architecture = "granitehybrid",
        .name = "Granite-4 H",
        .recurrence = MOE_RECURRENCE_SPACE,
        .rope = MOE_ROPE_INTERLEAVED,
        .rope_if_finetuned = true,
        .gate = MOE_GATE_SOFTMAX_SELECTED,
        .logit_divisor = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_SCALES,
    },
    {
        .architecture = "nemotron_h_moe",
        .name = "Nemotron-H-MoE",
        .norm_key_of_means = true,
        .single_parts = true,
        .recurrence = MOE_RECURRENCE_SPACE,
        .rope = MOE_ROPE_HALVES,
        .no_rope = true,
        .ffn_norm = "attn_norm.weight",
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .no_gate_matrix = true,
        .expert_width = MOE_EXPERT_WIDTH_SHARE,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_GROUPS | MOE_KEY_LATENT,
    },
    {
        .architecture = "jamba",
        .name = "Jamba",
        .recurrence = MOE_RECURRENCE_SCAN,
        .rope = MOE_ROPE_HALVES,
        .no_rope = true,
        .gate = MOE_GATE_SOFTMAX,
        .experts_by_tensors = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    },
    {
        .architecture = "ernie4_5-moe",
        .name = "ERNIE-4.5-MoE",
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX,
        .gate_takes_bias = true,
        .gate_renormalise = true,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_EVERY | MOE_KEY_SECTIONS,
    },
    {
        .architecture = "bailingmoe",
        .name = "Ling",
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SOFTMAX,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD,
    },
    {
        .architecture = "bailingmoe2",
        .name = "Ling 2.0",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    },
    {
        .architecture = "dots1",
        .name = "dots.llm1",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    },
    {
        .architecture = "hy_v3",
        .name = "Hunyuan-3",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .gate_renormalise = true,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_DENSE_LEAD,
    },
    {
        .architecture = "hunyuan-moe",
        .name = "Hunyuan-MoE",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
        .shared = MOE_SHARED_TENSORS,
    },
};

#define N_ALIKE (sizeof alike / sizeof alike[0])

size_t moe_family_count(void)
{
    return N_ALIKE + moe_n_families_of_forms;
}

const moe_family *moe_family_at(size_t index)
{
    if (index < N_ALIKE) {
        return &alike[index];
    }
    return index < moe_family_count() ? &moe_families_of_forms[index - N_ALIKE] : NULL;
}

const moe_family *moe_family_find(const char *architecture)
{
    for (size_t i = 0; i < moe_family_count(); i++) {
        const moe_family *family = moe_family_at(i);
        if (strcmp(family->architecture, architecture) == 0) {
            return family;
        }
    }
    return NULL;
}
