/* SPDX-License-Identifier: MIT */
/* GLM-4.5. Only the larger models norm the heads. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    bool has_norm = moe_build_first_rows(b, MOE_LAYER_ATTN_Q_NORM) > 0;
    moe_write_layer(
        b, &(moe_layer_form){.attention.qk_norm = has_norm ? MOE_QK_NORM_HEAD : MOE_QK_NORM_NONE});
}

const moe_family moe_family_glm4moe = {
    .architecture = "glm4moe",
    .name = "GLM-4.5",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS | MOE_KEY_SECTIONS,
    .aliases = {{MOE_LAYER_FFN_NORM, "post_attention_norm.weight"}},
    .layer = write_layer,
};
