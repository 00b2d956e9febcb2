/* SPDX-License-Identifier: MIT */
/* Feed-forward networks, routed experts and their routers. */
#include "runtime/program/program_builder.h"

/* limit: of the layer's kind, 0 without one. */
static moe_activation activation_of(const moe_model_config *c, float limit)
{
    switch (c->activation) {
    case MOE_FF_SWIGLU_CLAMPED:
        return (moe_activation){MOE_ACTIVATION_SWIGLU_CLAMPED, c->swiglu_alpha, c->swiglu_limit};
    case MOE_FF_GELU:
        return (moe_activation){MOE_ACTIVATION_GELU, 0, 0};
    case MOE_FF_RELU:
        return (moe_activation){MOE_ACTIVATION_RELU, 0, 0};
    case MOE_FF_SILU:
        break;
    }
    return (moe_activation){limit > 0 ? MOE_ACTIVATION_SILU_LIMITED : MOE_ACTIVATION_SILU, 0,
                            limit};
}

/* A network that every row passes through; its tensors are gate and the two that follow. */
static void build_dense(moe_program_builder *b, int gate, uint32_t n_inner, moe_value to)
{
    const moe_model_config *c = b->config;
    moe_activation activation = activation_of(c, moe_built_kind(b)->shared_limit);
    moe_build(b, (moe_op){.kind = MOE_OP_NETWORK,
                          .n = c->n_embd,
                          .tensor = gate,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_NORM, c->n_embd),
                          .y = moe_all_of(to, c->n_embd),
                          .u.experts = {.activation = activation,
                                        .n_inner = n_inner,
                                        .no_gate = c->no_gate_matrix}});
}

/* ---- Routers ---- */

static void build_router(moe_program_builder *b, moe_value from, moe_value to)
{
    const moe_model_config *c = b->config;
    moe_build_linear(b, from, c->n_embd, MOE_LAYER_ROUTER, MOE_LAYER_ROUTER_BIAS, to);
    moe_build_scale(b, to, c->n_expert, c->router_scale);
    moe_build_cap(b, to, c->n_expert, c->router_cap);
}

static int experts_norm(const moe_model_config *c)
{
    return c->experts_input != MOE_EXPERTS_NORM ? MOE_LAYER_EXPERTS_NORM : MOE_LAYER_FFN_NORM;
}

void moe_build_router_ahead(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    int tensor = c->router_input == MOE_ROUTER_OWN_NORM ? MOE_LAYER_ROUTER_NORM
                 : c->experts_input == MOE_EXPERTS_NORM && c->parallel_residual
                     ? MOE_LAYER_ATTN_NORM
                     : experts_norm(c);
    bool raw = c->router_input == MOE_ROUTER_LAYER_INPUT;
    if (!raw) {
        moe_build_row_norm(b, tensor, MOE_VALUE_X, MOE_VALUE_BRANCH);
    }
    build_router(b, raw ? MOE_VALUE_X : MOE_VALUE_BRANCH, MOE_VALUE_NEXT_LOGITS);
}

void moe_build_layer_input(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    if (!moe_layer_has_experts(c, b->layer)) {
        return;
    }
    if (c->experts_input == MOE_EXPERTS_LAYER_NORM) {
        moe_build_row_norm(b, MOE_LAYER_EXPERTS_NORM, MOE_VALUE_X, MOE_VALUE_LAYER_NORM);
        build_router(b, MOE_VALUE_LAYER_NORM, MOE_VALUE_ROUTER_LOGITS);
    } else if (c->router_input == MOE_ROUTER_LAYER_INPUT) {
        build_router(b, MOE_VALUE_X, MOE_VALUE_ROUTER_LOGITS);
    }
}

/* ---- Networks ---- */

/* What the network reads, into NORM. A parallel one reads what attention has read, which is still
 * there. */
static void norm_input(moe_program_builder *b, int tensor)
{
    if (!b->config->parallel_residual) {
        moe_build_row_norm(b, tensor, MOE_VALUE_X, MOE_VALUE_NORM);
    }
}

/* x += BRANCH. */
static void add_branch(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    if (c->ffn_post_norm_tensor != NULL) {
        moe_build_row_norm(b, MOE_LAYER_FFN_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
    }
    moe_build_scale(b, MOE_VALUE_BRANCH, c->n_embd, c->residual_scale);
    moe_build_add(b, MOE_VALUE_X, MOE_VALUE_BRANCH, MOE_VALUE_X, c->n_embd);
    if (moe_build_has(b, MOE_LAYER_OUT_SCALE)) {
        moe_build(b, (moe_op){.kind = MOE_OP_SCALE,
                              .n = c->n_embd,
                              .tensor = MOE_LAYER_OUT_SCALE,
                              .bias = MOE_TENSOR_NONE,
                              .x = moe_all_of(MOE_VALUE_X, c->n_embd),
                              .y = moe_all_of(MOE_VALUE_X, c->n_embd)});
    }
}

/* The router, unless the layer's input has been routed, and what the experts read. */
static void build_routing(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    if (c->experts_input != MOE_EXPERTS_LAYER_NORM) {
        if (c->router_input == MOE_ROUTER_OWN_NORM) {
            moe_build_row_norm(b, MOE_LAYER_ROUTER_NORM, MOE_VALUE_X, MOE_VALUE_BRANCH);
            build_router(b, MOE_VALUE_BRANCH, MOE_VALUE_ROUTER_LOGITS);
        }
        norm_input(b, experts_norm(c));
        if (c->router_input == MOE_ROUTER_AS_EXPERTS) {
            build_router(b, MOE_VALUE_NORM, MOE_VALUE_ROUTER_LOGITS);
        }
    }
    if (moe_experts_are_latent(c)) {
        moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_LATENT_IN, MOE_TENSOR_NONE,
                         MOE_VALUE_LATENT);
    }
}

/* From the router's logits to the experts' sum, in BRANCH. */
static void build_experts(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    bool latent = moe_experts_are_latent(c);
    moe_value from = latent                                       ? MOE_VALUE_LATENT
                     : c->experts_input == MOE_EXPERTS_LAYER_NORM ? MOE_VALUE_LAYER_NORM
                                                                  : MOE_VALUE_NORM;
    moe_value to = latent ? MOE_VALUE_LATENT_SUM : MOE_VALUE_BRANCH;
    bool biased = moe_build_has(b, MOE_LAYER_EXPERTS_GATE_BIAS);
    moe_build(b,
              (moe_op){.kind = MOE_OP_ROUTE,
                       .n = c->n_expert,
                       .tensor = MOE_LAYER_ROUTER_SELECTION_BIAS,
                       .bias = moe_build_has(b, MOE_LAYER_EXPERTS_SCALE) ? MOE_LAYER_EXPERTS_SCALE
                                                                         : MOE_TENSOR_NONE,
                       .x = moe_all_of(MOE_VALUE_ROUTER_LOGITS, c->n_expert)});
    moe_build(
        b, (moe_op){.kind = MOE_OP_EXPERTS,
                    .n = c->n_expert_in,
                    .tensor = MOE_TENSOR_NONE,
                    .bias = biased ? MOE_LAYER_EXPERTS_GATE_BIAS : MOE_TENSOR_NONE,
                    .x = moe_all_of(from, c->n_expert_in),
                    .y = moe_all_of(MOE_VALUE_RANK_OUT, c->n_expert_in),
                    .u.experts = {.activation = activation_of(c, moe_built_kind(b)->expert_limit),
                                  .n_inner = c->n_ff_expert,
                                  .no_gate = c->no_gate_matrix,
                                  .scales_inputs = c->gate_scales_input}});
    moe_build(b, (moe_op){.kind = MOE_OP_COMBINE,
                          .n = c->n_expert_in,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_RANK_OUT, c->n_expert_in),
                          .y = moe_all_of(to, c->n_expert_in)});
    if (latent) {
        moe_build_linear(b, MOE_VALUE_LATENT_SUM, c->n_expert_in, MOE_LAYER_LATENT_OUT,
                         MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
    }
}

/* BRANCH += the expert that every row passes through. */
static void add_shared(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    if (c->experts_input != MOE_EXPERTS_NORM) {
        moe_build_row_norm(b, MOE_LAYER_FFN_NORM, MOE_VALUE_X, MOE_VALUE_NORM);
    }
    build_dense(b, MOE_LAYER_SHARED_GATE, c->n_ff_shared, MOE_VALUE_SHARED);
    if (c->shared_gated) {
        moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_SHARED_ROUTER, MOE_TENSOR_NONE,
                         MOE_VALUE_SHARED_GATE);
        moe_build(b, (moe_op){.kind = MOE_OP_GATE,
                              .n = c->n_embd,
                              .tensor = MOE_TENSOR_NONE,
                              .bias = MOE_TENSOR_NONE,
                              .x = moe_all_of(MOE_VALUE_SHARED, c->n_embd),
                              .y = moe_all_of(MOE_VALUE_SHARED, c->n_embd),
                              .z = moe_all_of(MOE_VALUE_SHARED_GATE, 1),
                              .u.gate = {.kind = MOE_GATING_SIGMOID, .one = true}});
    }
    if (c->branches_normed) {
        moe_build_row_norm(b, MOE_LAYER_EXPERTS_POST_NORM, MOE_VALUE_BRANCH, MOE_VALUE_BRANCH);
        moe_build_row_norm(b, MOE_LAYER_SHARED_POST_NORM, MOE_VALUE_SHARED, MOE_VALUE_SHARED);
    }
    moe_build_add(b, MOE_VALUE_BRANCH, MOE_VALUE_SHARED, MOE_VALUE_BRANCH, c->n_embd);
    moe_build_scale(b, MOE_VALUE_BRANCH, c->n_embd, c->branch_scale);
}

void moe_build_network(moe_program_builder *b, moe_program_layer *layer)
{
    moe_feed_forward_kind kind = moe_built_kind(b)->feed_forward;
    const uint32_t *n_ops = &b->program->n_ops;
    if (kind == MOE_FEED_FORWARD_DENSE) {
        norm_input(b, MOE_LAYER_FFN_NORM);
        build_dense(b, MOE_LAYER_FFN_GATE, b->config->n_ff_dense, MOE_VALUE_BRANCH);
        add_branch(b);
    }
    layer->rest = layer->summed = *n_ops;
    if (moe_layer_has_experts(b->config, b->layer)) {
        build_routing(b);
        layer->rest = *n_ops;
        build_experts(b);
        layer->summed = *n_ops;
        if (kind == MOE_FEED_FORWARD_BOTH) {
            add_shared(b);
        }
        add_branch(b);
    }
    layer->end = *n_ops;
}
