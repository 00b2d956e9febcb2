/* SPDX-License-Identifier: MIT */
/* Phi-3.5-MoE: LayerNorms, with biases if the file has them; SparseMixer chooses the experts. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_phimoe = {
    .architecture = "phimoe",
    .name = "Phi-3.5-MoE",
    .norm = MOE_NORM_MEAN,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SPARSE_MIXER,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .layer = moe_write_usual,
};
