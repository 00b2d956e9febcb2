/* SPDX-License-Identifier: MIT */
/* LFM2: most layers are short convolutions. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_lfm2moe = {
    .architecture = "lfm2moe",
    .name = "LFM2-MoE",
    .recurrence = MOE_RECURRENCE_CONVOLUTION,
    .rope = MOE_ROPE_HALVES,
    .output_norm = "token_embd_norm.weight",
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .keys = MOE_KEY_DENSE_LEAD,
    .layer = moe_write_head_normed,
};
