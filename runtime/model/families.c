/* SPDX-License-Identifier: MIT */
#include "runtime/model/families.h"

#include <string.h>

static const moe_family families[] = {
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
        .architecture = "deepseek32",
        .name = "DeepSeek-V3.2",
        .attention = MOE_ATTENTION_MLA,
        .rope = MOE_ROPE_INTERLEAVED,
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
        .qk_norm_after_rope = true,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SOFTMAX,
        .gate_renormalise = true,
        .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
        .shared = MOE_SHARED_TENSORS,
    },
    {
        .architecture = "gpt-oss",
        .name = "gpt-oss",
        .window_period = 2,
        .attention_sinks = true,
        .rope = MOE_ROPE_HALVES,
        .yarn_fractions = true,
        .ffn_norm = "post_attention_norm.weight",
        .gate = MOE_GATE_SOFTMAX_SELECTED,
        .expert_biases = true,
        .swiglu_clamped = true,
    },
    {
        .architecture = "llama4",
        .name = "Llama-4",
        .qk_norm = MOE_QK_NORM_UNIT,
        .qk_norm_after_rope = true,
        .qk_norm_not_of = 128, /* Maverick; no key says so */
        .window_default = 8192,
        .window_chunks = true,
        .rope_in_windows = true,
        .window_period = 4,
        .rope = MOE_ROPE_INTERLEAVED,
        .gate = MOE_GATE_SIGMOID,
        .gate_scales_input = true,
        .shared = MOE_SHARED_TENSORS,
        .keys = MOE_KEY_EVERY | MOE_KEY_TEMPERATURE,
    },
    {
        .architecture = "exaone-moe",
        .name = "K-EXAONE",
        .qk_norm = MOE_QK_NORM_HEAD,
        .rope_in_windows = true,
        .window_period = 4,
        .rope = MOE_ROPE_HALVES,
        .gate = MOE_GATE_SIGMOID,
        .gate_takes_bias = true,
        .gate_renormalise = true,
        .shared = MOE_SHARED_COUNT,
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    },
};

size_t moe_family_count(void)
{
    return sizeof families / sizeof families[0];
}

const moe_family *moe_family_at(size_t index)
{
    return index < moe_family_count() ? &families[index] : NULL;
}

const moe_family *moe_family_find(const char *architecture)
{
    for (size_t i = 0; i < moe_family_count(); i++) {
        if (strcmp(families[i].architecture, architecture) == 0) {
            return &families[i];
        }
    }
    return NULL;
}
