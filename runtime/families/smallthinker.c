/* SPDX-License-Identifier: MIT */
/* SmallThinker. The router reads the stream at the beginning of the layer, before attention, so the
 * experts are known early. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_ahead(moe_program_builder *b)
{
    moe_build_router(b, MOE_VALUE_X, MOE_VALUE_NEXT_LOGITS);
}

static void write_layer(moe_program_builder *b)
{
    b->networks.activation.kind = MOE_ACTIVATION_RELU;
    moe_build_router(b, MOE_VALUE_X, MOE_VALUE_ROUTER_LOGITS);
    moe_build_mixer(b, &(moe_attention_form){0});
    moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    moe_build_experts(b, MOE_VALUE_NORM);
    moe_build_residual(b);
}

const moe_family moe_family_smallthinker = {
    .architecture = "smallthinker",
    .name = "SmallThinker",
    .rope_in_windows = true,
    .window_period = 4,
    .window_last = true,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .layer = write_layer,
    .ahead = write_ahead,
};
