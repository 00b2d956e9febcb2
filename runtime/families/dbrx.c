/* SPDX-License-Identifier: MIT */
/* DBRX: LayerNorms; queries, keys and values are clamped. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_dbrx = {
    .architecture = "dbrx",
    .name = "DBRX",
    .norm = MOE_NORM_MEAN,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .keys = MOE_KEY_CLAMP_KQV,
    .aliases = {{MOE_LAYER_FFN_NORM, "attn_output_norm.weight"}},
    .layer = moe_write_usual,
};
