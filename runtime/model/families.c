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
        .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG,
        .sigmoid_n_layer = 61,
        .sigmoid_n_expert = 256,
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
