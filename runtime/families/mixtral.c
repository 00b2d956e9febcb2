/* SPDX-License-Identifier: MIT */
/* Mixtral: the usual layer; the other families are described by their differences from it. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_llama = {
    .architecture = "llama",
    .name = "Mixtral",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .layer = moe_write_usual,
};
