/* SPDX-License-Identifier: MIT */
/* FlexOlmo. Attention and experts read the stream without a norm; their outputs are normed before
 * they are added. */
#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void write_ahead(moe_program_builder *b)
{
    moe_build_router(b, MOE_VALUE_X, MOE_VALUE_NEXT_LOGITS);
}

static void read_stream(moe_program_builder *b)
{
    const uint32_t n = b->config->n_embd;
    moe_build_copy(b, moe_all_of(MOE_VALUE_X, n), moe_all_of(MOE_VALUE_NORM, n), n, 1);
}

static void write_layer(moe_program_builder *b)
{
    read_stream(b);
    moe_build_attention(b, &(moe_attention_form){.qk_norm = MOE_QK_NORM_FULL});
    moe_build_row_norm(b, MOE_LAYER_ATTN_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
    moe_build_residual(b);
    moe_build_mixed(b);
    read_stream(b);
    moe_build_router(b, MOE_VALUE_NORM, MOE_VALUE_ROUTER_LOGITS);
    moe_build_experts(b, MOE_VALUE_NORM);
    moe_build_row_norm(b, MOE_LAYER_FFN_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
    moe_build_residual(b);
}

const moe_family moe_family_flex_olmo = {
    .architecture = "flex_olmo",
    .name = "FlexOlmo",
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .expert_width = MOE_EXPERT_WIDTH_FEED_FORWARD,
    .layer = write_layer,
    .ahead = write_ahead,
};
