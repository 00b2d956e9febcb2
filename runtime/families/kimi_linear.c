/* SPDX-License-Identifier: MIT */
/* Kimi-Linear: most layers have a delta rule with a decay for each channel; the others have latent
 * attention without rotary embedding. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_kimi_linear = {
    .architecture = "kimi-linear",
    .name = "Kimi-Linear",
    .attention = MOE_ATTENTION_MLA,
    .recurrence = MOE_RECURRENCE_CHANNELS,
    .rope = MOE_ROPE_INTERLEAVED,
    .no_rope = true,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    .layer = moe_write_usual,
};
