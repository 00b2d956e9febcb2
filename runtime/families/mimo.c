/* SPDX-License-Identifier: MIT */
/* MiMo-V2: layers with a window have other heads, and some layers have attention sinks. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.sinks = MOE_SINKS_SOME});
}

const moe_family moe_family_mimo2 = {
    .architecture = "mimo2",
    .name = "MiMo-V2",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SIGMOID,
    .gate_takes_bias = true,
    .gate_renormalise = true,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_WINDOW_HEADS | MOE_KEY_VALUE_SCALE,
    .layer = write_layer,
};
