/* SPDX-License-Identifier: MIT */
/* Gemma-4. The router, the routed experts and the dense network beside them each read the stream
 * through a norm of their own. The outputs of the two networks are normed, and so is their sum.
 * After each layer the stream is multiplied by a number. */

#include <math.h>

#include "runtime/families/families.h"
#include "runtime/program/program_builder.h"

static void adjust(moe_model_config *config)
{
    config->embedding_scale *= sqrtf((float)config->n_embd);
}

static void write_router(moe_program_builder *b, moe_value to)
{
    const moe_model_config *c = b->config;
    moe_build_row_norm(b, MOE_LAYER_ROUTER_NORM, MOE_VALUE_X, MOE_VALUE_BRANCH);
    moe_build_linear(b, MOE_VALUE_BRANCH, c->n_embd, MOE_LAYER_ROUTER, c->n_expert, MOE_TENSOR_NONE,
                     to);
    moe_build_scale(b, to, c->n_expert, 1 / sqrtf((float)c->n_embd));
    moe_build_cap(b, to, c->n_expert, c->router_cap);
}

static void write_ahead(moe_program_builder *b)
{
    write_router(b, MOE_VALUE_NEXT_LOGITS);
}

static void write_layer(moe_program_builder *b)
{
    const uint32_t n_embd = b->config->n_embd;
    b->networks = (moe_network_form){.activation.kind = MOE_ACTIVATION_GELU, .weight_scales = true};
    moe_build_mixer(b, &(moe_attention_form){.qk_norm = MOE_QK_NORM_HEAD,
                                             .values_normed = true,
                                             .values_optional = true,
                                             .post_norm = true});
    write_router(b, MOE_VALUE_ROUTER_LOGITS);
    moe_build_row_norm(b, MOE_LAYER_EXPERTS_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    moe_build_experts(b, MOE_VALUE_NORM);
    if (moe_built_kind(b)->feed_forward == MOE_FEED_FORWARD_BOTH) {
        moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
        moe_build_shared(b);
        moe_build_row_norm(b, MOE_LAYER_EXPERTS_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
        moe_build_row_norm(b, MOE_LAYER_SHARED_POST_NORM, MOE_VALUE_SHARED, MOE_VALUE_SHARED);
        moe_build_add(b, MOE_VALUE_BRANCH, MOE_VALUE_SHARED, MOE_VALUE_BRANCH, n_embd);
    }
    moe_build_row_norm(b, MOE_LAYER_FFN_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
    moe_build_residual(b);
    if (moe_build_has(b, MOE_LAYER_OUT_SCALE)) {
        moe_build(b, (moe_op){.kind = MOE_OP_SCALE,
                              .n = n_embd,
                              .tensor = MOE_LAYER_OUT_SCALE,
                              .bias = MOE_TENSOR_NONE,
                              .x = moe_all_of(MOE_VALUE_X, n_embd),
                              .y = moe_all_of(MOE_VALUE_X, n_embd)});
    }
}

const moe_family moe_family_gemma4 = {
    .architecture = "gemma4",
    .name = "Gemma-4",
    .attention_scale = 1,
    .window_period = 6,
    .rope = MOE_ROPE_HALVES,
    .gate = MOE_GATE_SOFTMAX,
    .gate_renormalise = true,
    .shared = MOE_SHARED_DENSE,
    .keys = MOE_KEY_CAPS | MOE_KEY_WINDOW_HEADS,
    .adjust = adjust,
    .layer = write_layer,
    .ahead = write_ahead,
};
