/* SPDX-License-Identifier: MIT */
/* dots.llm1: the router of DeepSeek-V3, and attention whose heads are normed. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

const moe_family moe_family_dots1 = {
    .architecture = "dots1",
    .name = "dots.llm1",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .shared = MOE_SHARED_COUNT,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_GROUPS,
    .layer = moe_write_head_normed,
};
