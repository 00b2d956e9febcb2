/* SPDX-License-Identifier: MIT */
/* Cohere2-MoE. Attention and network read the same norm of the stream, and both are added to the
 * stream. The network's output is the mean of the routed experts' sum and the shared expert's
 * output. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_ahead(moe_program_builder *b)
{
    moe_write_ahead(b, MOE_LAYER_ATTN_NORM);
}

static void write_layer(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.parallel = true, .branch_scale = 0.5f});
}

const moe_family moe_family_cohere2moe = {
    .architecture = "cohere2moe",
    .name = "Cohere2-MoE",
    .norm = MOE_NORM_MEAN,
    .norm_by_key = true,
    .rope_in_windows = true,
    .rope_in_dense_lead = true,
    .window_period = 4,
    .window_last = true,
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SIGMOID,
    .shared = MOE_SHARED_TENSORS,
    .keys = MOE_KEY_DENSE_LEAD | MOE_KEY_SCALES,
    .layer = write_layer,
    .ahead = write_ahead,
};
