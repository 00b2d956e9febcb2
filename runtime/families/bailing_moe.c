/* SPDX-License-Identifier: MIT */
/* Ling, whose architecture is called Bailing. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_bailingmoe = {
    .architecture = "bailingmoe",
    .name = "Ling",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD,
    .layer = moe_write_usual,
};

const moe_family moe_family_bailingmoe2 = {
    .architecture = "bailingmoe2",
    .name = "Ling 2.0",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    .layer = moe_write_head_normed,
};
