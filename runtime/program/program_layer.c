/* SPDX-License-Identifier: MIT */
/* A layer as most families have it, and its parts. */
#include "runtime/program/program_builder.h"

void moe_build_residual(moe_program_builder *b)
{
    moe_build_scale(b, MOE_VALUE_BRANCH, b->config->n_embd, b->config->residual_scale);
    moe_build_add(b, MOE_VALUE_X, MOE_VALUE_BRANCH, MOE_VALUE_X, b->config->n_embd);
}

void moe_build_mixed(moe_program_builder *b)
{
    b->program->layers[b->layer].mixed = b->program->n_ops;
}

void moe_build_mixer(moe_program_builder *b, const moe_attention_form *form)
{
    moe_mixer_kind mixer = moe_built_kind(b)->mixer;
    if (mixer != MOE_MIXER_NONE) {
        moe_build_row_norm(b, MOE_LAYER_ATTN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    }
    if (mixer == MOE_MIXER_ATTENTION) {
        moe_build_attention(b, form);
    } else if (mixer == MOE_MIXER_LATENT) {
        moe_build_latent_attention(b, form);
    } else if (mixer == MOE_MIXER_RECURRENT) {
        moe_build_recurrent(b);
    }
    if (mixer != MOE_MIXER_NONE && form->post_norm) {
        moe_build_row_norm(b, MOE_LAYER_ATTN_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
    }
    if (mixer != MOE_MIXER_NONE) {
        moe_build_residual(b);
    }
    moe_build_mixed(b);
}

void moe_write_network(moe_program_builder *b, const moe_layer_form *form)
{
    const moe_model_config *c = b->config;
    moe_feed_forward_kind kind = moe_built_kind(b)->feed_forward;
    if (kind == MOE_FEED_FORWARD_NONE) {
        return;
    }
    if (!form->parallel) {
        moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    }
    if (kind == MOE_FEED_FORWARD_DENSE) {
        moe_build_dense(b);
    } else {
        moe_build_router(b, MOE_VALUE_NORM, MOE_VALUE_ROUTER_LOGITS);
        moe_build_experts(b, MOE_VALUE_NORM);
    }
    if (kind == MOE_FEED_FORWARD_BOTH) {
        moe_build_shared(b);
        moe_build_add(b, MOE_VALUE_BRANCH, MOE_VALUE_SHARED, MOE_VALUE_BRANCH, c->n_embd);
        moe_build_scale(b, MOE_VALUE_BRANCH, c->n_embd,
                        form->branch_scale != 0.0f ? form->branch_scale : 1.0f);
    }
    if (form->post_norm != 0) {
        moe_build_row_norm(b, form->post_norm, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
    }
    moe_build_residual(b);
}

void moe_write_layer(moe_program_builder *b, const moe_layer_form *form)
{
    b->networks = form->networks;
    moe_build_mixer(b, &form->attention);
    moe_write_network(b, form);
}

void moe_write_ahead(moe_program_builder *b, int norm)
{
    moe_build_row_norm(b, norm, MOE_VALUE_X, MOE_VALUE_BRANCH);
    moe_build_router(b, MOE_VALUE_BRANCH, MOE_VALUE_NEXT_LOGITS);
}

void moe_write_usual(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){0});
}

void moe_write_head_normed(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.qk_norm = MOE_QK_NORM_HEAD});
}

void moe_write_full_normed(moe_program_builder *b)
{
    moe_write_layer(b, &(moe_layer_form){.attention.qk_norm = MOE_QK_NORM_FULL});
}
