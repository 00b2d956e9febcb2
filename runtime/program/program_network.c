/* SPDX-License-Identifier: MIT */
/* Feed-forward networks, routed experts and their routers. */
#include "runtime/program/program_builder.h"

/* limit: the layer's; 0: none. */
static moe_activation activation_of(const moe_program_builder *b, float limit)
{
    const moe_model_config *c = b->config;
    if (b->networks.activation.kind == MOE_ACTIVATION_SITU) {
        return (moe_activation){MOE_ACTIVATION_SITU, c->situ_beta, c->situ_linear_beta};
    }
    bool limited = b->networks.activation.kind == MOE_ACTIVATION_SILU && limit > 0;
    moe_activation_kind kind =
        b->networks.limits_gate ? MOE_ACTIVATION_SILU_CLAMPED : MOE_ACTIVATION_SILU_LIMITED;
    return limited ? (moe_activation){kind, 0, limit} : b->networks.activation;
}

/* gate: the first of the network's three tensors, before up and down. */
static void build_network(moe_program_builder *b, int gate, uint32_t n_inner, moe_value to)
{
    const moe_model_config *c = b->config;
    moe_activation activation = activation_of(b, moe_built_kind(b)->shared_limit);
    moe_build(b, (moe_op){.kind = MOE_OP_NETWORK,
                          .n = c->n_embd,
                          .tensor = gate,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_NORM, c->n_embd),
                          .y = moe_all_of(to, c->n_embd),
                          .u.experts = {.activation = activation,
                                        .n_inner = n_inner,
                                        .no_gate = b->networks.no_gate}});
}

void moe_build_dense(moe_program_builder *b)
{
    build_network(b, MOE_LAYER_FFN_GATE, b->config->n_ff_dense, MOE_VALUE_BRANCH);
}

void moe_build_shared(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    build_network(b, MOE_LAYER_SHARED_GATE, c->n_ff_shared, MOE_VALUE_SHARED);
    if (c->shared_gated) {
        moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_SHARED_ROUTER, 1, MOE_TENSOR_NONE,
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
}

void moe_build_router(moe_program_builder *b, moe_value from, moe_value to)
{
    const moe_model_config *c = b->config;
    moe_build_linear(b, from, c->n_embd, MOE_LAYER_ROUTER, c->n_expert,
                     b->networks.biases ? MOE_LAYER_ROUTER_BIAS : MOE_TENSOR_NONE, to);
    if (b->networks.biases) {
        moe_build_claim(b, MOE_LAYER_ROUTER_BIAS, c->n_expert, 1, MOE_TENSOR_VECTOR);
    }
    moe_build_cap(b, to, c->n_expert, c->router_cap);
}

void moe_build_experts(moe_program_builder *b, moe_value from)
{
    const moe_model_config *c = b->config;
    moe_program_layer *layer = &b->program->layers[b->layer];
    bool latent = moe_experts_are_latent(c);
    moe_value to = latent ? MOE_VALUE_LATENT_SUM : MOE_VALUE_BRANCH;
    if (latent) {
        moe_build_linear(b, from, c->n_embd, MOE_LAYER_LATENT_IN, c->n_expert_in, MOE_TENSOR_NONE,
                         MOE_VALUE_LATENT);
    }
    layer->rest = b->program->n_ops;
    moe_build(
        b, (moe_op){.kind = MOE_OP_ROUTE,
                    .n = c->n_expert,
                    .tensor = moe_built_kind(b)->by_table ? MOE_LAYER_ROUTER_TABLE
                                                          : MOE_LAYER_ROUTER_SELECTION_BIAS,
                    .bias = b->networks.weight_scales ? MOE_LAYER_EXPERTS_SCALE : MOE_TENSOR_NONE,
                    .x = moe_all_of(MOE_VALUE_ROUTER_LOGITS, c->n_expert)});
    moe_build(
        b, (moe_op){.kind = MOE_OP_EXPERTS,
                    .n = c->n_expert_in,
                    .tensor = MOE_TENSOR_NONE,
                    .bias = b->networks.biases ? MOE_LAYER_EXPERTS_GATE_BIAS : MOE_TENSOR_NONE,
                    .x = moe_all_of(latent ? MOE_VALUE_LATENT : from, c->n_expert_in),
                    .y = moe_all_of(MOE_VALUE_RANK_OUT, c->n_expert_in),
                    .u.experts = {.activation = activation_of(b, moe_built_kind(b)->expert_limit),
                                  .n_inner = c->n_ff_expert,
                                  .no_gate = b->networks.no_gate,
                                  .scales_inputs = b->networks.scales_inputs}});
    moe_build(b, (moe_op){.kind = MOE_OP_COMBINE,
                          .n = c->n_expert_in,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_RANK_OUT, c->n_expert_in),
                          .y = moe_all_of(to, c->n_expert_in)});
    if (latent && moe_build_has(b, MOE_LAYER_LATENT_NORM)) {
        moe_build_norm(b, MOE_LAYER_LATENT_NORM, moe_all_of(MOE_VALUE_LATENT_SUM, c->n_expert_in),
                       c->n_expert_in, 1);
    }
    if (latent) {
        moe_build_linear(b, MOE_VALUE_LATENT_SUM, c->n_expert_in, MOE_LAYER_LATENT_OUT, c->n_embd,
                         MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
    }
    layer->summed = b->program->n_ops;
}
