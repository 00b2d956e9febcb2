/* SPDX-License-Identifier: MIT */
/* Jamba: most layers are selective scans; no layer has rotary embedding. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_jamba = {
    .architecture = "jamba",
    .name = "Jamba",
    .recurrence = MOE_RECURRENCE_SCAN,
    .rope = MOE_ROPE_HALVES,
    .no_rope = true,
    .gate = MOE_GATE_SOFTMAX,
    .experts_by_tensors = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .layer = moe_write_usual,
};
