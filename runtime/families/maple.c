/* SPDX-License-Identifier: MIT */
/* Maple: layers without a window have no rotary embedding; experts clamp gate and up before they
 * multiply them. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_maple = {
    .architecture = "maple",
    .name = "Maple",
    .rope_in_windows = true,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_limit = 7, /* for older files, which do not state it */
    .keys = MOE_KEY_LIMITS | MOE_KEY_WINDOW_HEADS,
    .layer = moe_write_head_normed,
};
