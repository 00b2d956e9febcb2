/* SPDX-License-Identifier: MIT */
/* DeepSeek, and families with its latent attention: shared experts beside the routed ones, leading
 * dense layers, groups of experts. V3.2 and GLM-5 have indexers. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_deepseek = {
    .architecture = "deepseek",
    .name = "DeepSeek-MoE",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD,
    .layer = moe_write_usual,
};

const moe_family moe_family_deepseek2 = {
    .architecture = "deepseek2",
    .name = "DeepSeek-V2/V3",
    .attention = MOE_ATTENTION_MLA,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_TEMPERATURE,
    .sigmoid_n_layer = 61,
    .sigmoid_n_expert = 256,
    .layer = moe_write_usual,
};

static void write_indexed(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.index_rope = MOE_ROPE_HALVES});
}

const moe_family moe_family_deepseek32 = {
    .architecture = "deepseek32",
    .name = "DeepSeek-V3.2",
    .attention = MOE_ATTENTION_MLA,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_INDEXER,
    .layer = write_indexed,
};

const moe_family moe_family_glm_dsa = {
    .architecture = "glm-dsa",
    .name = "GLM-5",
    .attention = MOE_ATTENTION_MLA,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys =
        MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_SECTIONS | MOE_KEY_INDEXER,
    .layer = moe_write_usual,
};

const moe_family moe_family_mistral4 = {
    .architecture = "mistral4",
    .name = "Mistral-4",
    .attention = MOE_ATTENTION_MLA,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_YARN_LOG | MOE_KEY_TEMPERATURE,
    .layer = moe_write_usual,
};
