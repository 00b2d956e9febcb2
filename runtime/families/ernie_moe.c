/* SPDX-License-Identifier: MIT */
/* ERNIE-4.5: dense layers, then experts in every n-th layer; biases for the choice of experts. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_ernie4_5_moe = {
    .architecture = "ernie4_5-moe",
    .name = "ERNIE-4.5-MoE",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_EVERY | MOE_KEY_SECTIONS,
    .layer = moe_write_usual,
};
