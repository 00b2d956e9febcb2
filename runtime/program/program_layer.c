/* SPDX-License-Identifier: MIT */
/* A layer as most families have it, and its parts. */
#include "runtime/program/program_builder.h"

moe_value moe_build_read(moe_program_builder *b, moe_value x, int tensor, moe_value mix,
                         moe_value to)
{
    const moe_model_config *c = b->config;
    const uint32_t n = c->n_embd, n_all = n * c->n_streams;
    bool head = tensor == MOE_TENSOR_STREAMS;
    const uint32_t n_weights = head ? c->n_streams : moe_stream_weights(c);
    if (c->n_streams <= 1) {
        return x;
    }
    if (c->stream_rank > 0) {
        moe_build_gated_read(b, x, tensor, mix, to);
        return to;
    }
    if (c->stream_block > 0) {
        moe_build_recall(b, x, tensor, mix, to);
        return to;
    }
    moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                          .n = n_all,
                          .tensor = MOE_TENSOR_ONES,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(x, n_all),
                          .y = moe_all_of(MOE_VALUE_STREAM_NORM, n_all),
                          .u.norm.eps = c->norm_eps});
    moe_build_linear(b, MOE_VALUE_STREAM_NORM, n_all, tensor, n_weights, MOE_TENSOR_NONE, mix);
    moe_build(b, (moe_op){.kind = MOE_OP_READ,
                          .n = n,
                          .each = c->n_streams,
                          .tensor = tensor + 2,
                          .bias = tensor + 1,
                          .x = moe_all_of(x, n),
                          .y = moe_all_of(to, n),
                          .u.streams = {.weights = moe_all_of(mix, n_weights),
                                        .eps = c->stream_eps,
                                        .magnitude = c->stream_magnitude,
                                        .write_eps = c->stream_write_eps,
                                        .mixings = head ? 0 : c->stream_mixings}});
    return to;
}

void moe_build_residual(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    moe_build_scale(b, MOE_VALUE_BRANCH, c->n_embd, c->residual_scale);
    if (c->n_streams <= 1) {
        moe_build_add(b, MOE_VALUE_X, MOE_VALUE_BRANCH, MOE_VALUE_X, c->n_embd);
        return;
    }
    if (c->stream_block > 0) {
        moe_build_recalled(b);
        return;
    }
    const moe_operand streams = moe_all_of(MOE_VALUE_X, c->n_embd);
    const uint32_t first = c->stream_rank > 0 ? 0 : c->n_streams;
    moe_build(b, (moe_op){.kind = MOE_OP_WRITE,
                          .n = c->n_embd,
                          .each = c->n_streams,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = streams,
                          .y = streams,
                          .z = moe_all_of(MOE_VALUE_BRANCH, c->n_embd),
                          .u.streams = {.weights = moe_part_of(MOE_VALUE_STREAM_MIX, first,
                                                               moe_stream_weights(c)),
                                        .mixings = c->stream_mixings}});
}

/* What a branch reads, normed, into NORM. Streams whose elements have gates are normed already. */
static void read_normed(moe_program_builder *b, int streams, int norm)
{
    if (b->config->stream_rank > 0) {
        moe_build_read(b, MOE_VALUE_X, streams, MOE_VALUE_STREAM_MIX, MOE_VALUE_NORM);
        return;
    }
    moe_value read = moe_build_read(b, MOE_VALUE_X, streams, MOE_VALUE_STREAM_MIX, MOE_VALUE_READ);
    moe_build_row_norm(b, norm, read, MOE_VALUE_NORM);
}

void moe_build_mixed(moe_program_builder *b)
{
    b->program->layers[b->layer].mixed = b->program->n_ops;
}

void moe_build_mixer(moe_program_builder *b, const moe_attention_form *form)
{
    moe_mixer_kind mixer = moe_built_kind(b)->mixer;
    if (mixer != MOE_MIXER_NONE) {
        read_normed(b, MOE_LAYER_ATTN_STREAMS, MOE_LAYER_ATTN_NORM);
    }
    if (mixer == MOE_MIXER_ATTENTION) {
        moe_build_attention(b, form);
    } else if (mixer == MOE_MIXER_LATENT) {
        moe_build_latent_attention(b, form);
    } else if (mixer == MOE_MIXER_SHARED) {
        moe_build_shared_attention(b);
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
        read_normed(b, MOE_LAYER_FFN_STREAMS, MOE_LAYER_FFN_NORM);
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
    moe_value read =
        moe_build_read(b, MOE_VALUE_X, MOE_LAYER_FFN_STREAMS, MOE_VALUE_NEXT_MIX, MOE_VALUE_BRANCH);
    if (b->config->stream_rank == 0) {
        moe_build_row_norm(b, norm, read, MOE_VALUE_BRANCH);
    }
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
