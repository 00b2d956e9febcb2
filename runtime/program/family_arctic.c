/* SPDX-License-Identifier: MIT */
/* Snowflake Arctic. The routed experts read what the layer begins with, through a norm of their
 * own; the dense network beside them reads the stream behind attention. */
#include "runtime/program/program_builder.h"

void moe_write_arctic_ahead(moe_program_builder *b)
{
    moe_build_row_norm(b, MOE_LAYER_EXPERTS_NORM, MOE_VALUE_X, MOE_VALUE_BRANCH);
    moe_build_router(b, MOE_VALUE_BRANCH, MOE_VALUE_NEXT_LOGITS);
}

void moe_write_arctic(moe_program_builder *b)
{
    moe_build_row_norm(b, MOE_LAYER_EXPERTS_NORM, MOE_VALUE_X, MOE_VALUE_LAYER_NORM);
    moe_build_router(b, MOE_VALUE_LAYER_NORM, MOE_VALUE_ROUTER_LOGITS);
    moe_build_mixer(b, &(moe_attention_form){0});
    moe_build_experts(b, MOE_VALUE_LAYER_NORM, false);
    if (moe_built_kind(b)->feed_forward == MOE_FEED_FORWARD_BOTH) {
        moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
        moe_build_shared(b);
        moe_build_add(b, MOE_VALUE_BRANCH, MOE_VALUE_SHARED, MOE_VALUE_BRANCH, b->config->n_embd);
    }
    moe_build_residual(b);
}
