/* SPDX-License-Identifier: MIT */
/* K-EXAONE: three of four layers have windows, and only these have rotary embedding. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_exaone_moe = {
    .architecture = "exaone-moe",
    .name = "K-EXAONE",
    .rope_in_windows = true,
    .window_period = 4,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    .layer = moe_write_head_normed,
};
