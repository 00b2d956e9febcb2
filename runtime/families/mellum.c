/* SPDX-License-Identifier: MIT */
/* Mellum-2: three of four layers have windows, and a rotary embedding of their own. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_mellum = {
    .architecture = "mellum",
    .name = "Mellum-2",
    .window_period = 4,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_SHARE,
    .keys = MOE_KEY_WINDOW_HEADS,
    .layer = moe_write_head_normed,
};
