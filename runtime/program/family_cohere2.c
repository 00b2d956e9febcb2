/* SPDX-License-Identifier: MIT */
/* Cohere2-MoE. Attention and network read the same norm of the stream, which both are added to; the
 * network is the mean of the routed experts' sum and the shared expert. */
#include "runtime/program/program_builder.h"

void moe_write_cohere2_ahead(moe_program_builder *b)
{
    moe_build_row_norm(b, MOE_LAYER_ATTN_NORM, MOE_VALUE_X, MOE_VALUE_BRANCH);
    moe_build_router(b, MOE_VALUE_BRANCH, MOE_VALUE_NEXT_LOGITS);
}

void moe_write_cohere2(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.parallel = true, .branch_scale = 0.5f});
}
