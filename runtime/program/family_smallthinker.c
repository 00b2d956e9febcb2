/* SPDX-License-Identifier: MIT */
/* SmallThinker. The router reads the stream as the layer begins, before attention, so that experts
 * are known early. */
#include "runtime/program/program_builder.h"

void moe_write_smallthinker_ahead(moe_program_builder *b)
{
    moe_build_router(b, MOE_VALUE_X, MOE_VALUE_NEXT_LOGITS);
}

void moe_write_smallthinker(moe_program_builder *b)
{
    b->activation.kind = MOE_ACTIVATION_RELU;
    moe_build_router(b, MOE_VALUE_X, MOE_VALUE_ROUTER_LOGITS);
    moe_build_mixer(b, &(moe_attention_form){0});
    moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    moe_build_experts(b, MOE_VALUE_NORM, false);
    moe_build_residual(b);
}
