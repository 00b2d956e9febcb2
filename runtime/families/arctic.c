/* SPDX-License-Identifier: MIT */
/* Snowflake Arctic. The routed experts read the layer's input through a norm of their own; the
 * dense network beside them reads the stream after attention. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_ahead(moe_program_builder *b)
{
    moe_write_ahead(b, MOE_LAYER_EXPERTS_NORM);
}

static void write_layer(moe_program_builder *b)
{
    moe_build_row_norm(b, MOE_LAYER_EXPERTS_NORM, MOE_VALUE_X, MOE_VALUE_LAYER_NORM);
    moe_build_router(b, MOE_VALUE_LAYER_NORM, MOE_VALUE_ROUTER_LOGITS);
    moe_build_mixer(b, &(moe_attention_form){0});
    moe_build_experts(b, MOE_VALUE_LAYER_NORM);
    if (moe_built_kind(b)->feed_forward == MOE_FEED_FORWARD_BOTH) {
        moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
        moe_build_shared(b);
        moe_build_add(b, MOE_VALUE_BRANCH, MOE_VALUE_SHARED, MOE_VALUE_BRANCH, b->config->n_embd);
    }
    moe_build_residual(b);
}

const moe_family moe_family_arctic = {
    .architecture = "arctic",
    .name = "Arctic",
    .rope = MOE_ROPE_INTERLEAVED,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .shared = MOE_SHARED_DENSE,
    .aliases = {{MOE_LAYER_EXPERTS_NORM, "ffn_norm_exps.weight"}},
    .layer = write_layer,
    .ahead = write_ahead,
};
