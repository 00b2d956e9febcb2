/* SPDX-License-Identifier: MIT */
/* OLMoE. One norm spans the queries of all heads, and one the keys of all heads. The chosen
 * experts' weights are not normalised to a sum of 1. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_olmoe = {
    .architecture = "olmoe",
    .name = "OLMoE",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .keys = MOE_KEY_CLAMP_KQV,
    .layer = moe_write_full_normed,
};
