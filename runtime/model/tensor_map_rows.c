/* SPDX-License-Identifier: MIT */
#include "runtime/model/tensor_map_rows.h"

#include <string.h>

const moe_tensor_row moe_tensor_rows[MOE_LAYER_TENSOR_COUNT] = {
    [MOE_LAYER_ATTN_NORM] = {"attn_norm.weight", MOE_DIM_EMBD, MOE_DIM_NONE, MOE_TRAIT_MIXER},
    [MOE_LAYER_ATTN_NORM_BIAS] = {"attn_norm.bias", MOE_DIM_EMBD, MOE_DIM_NONE,
                                  MOE_TRAIT_MIXER | MOE_TRAIT_MEAN_NORM | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_ATTN_POST_NORM] = {"", MOE_DIM_EMBD, MOE_DIM_NONE, MOE_TRAIT_ATTN_POST_NORM},
    [MOE_LAYER_ATTN_Q] = {"attn_q.weight", MOE_DIM_EMBD, MOE_DIM_QUERIES, MOE_TRAIT_Q_DIRECT},
    [MOE_LAYER_ATTN_K] = {"attn_k.weight", MOE_DIM_EMBD, MOE_DIM_KEYS, MOE_TRAIT_GQA},
    [MOE_LAYER_ATTN_V] = {"attn_v.weight", MOE_DIM_EMBD, MOE_DIM_VALUES, MOE_TRAIT_GQA},
    [MOE_LAYER_ATTN_Q_BIAS] = {"attn_q.bias", MOE_DIM_QUERIES, MOE_DIM_NONE,
                               MOE_TRAIT_GQA | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_ATTN_K_BIAS] = {"attn_k.bias", MOE_DIM_KEYS, MOE_DIM_NONE,
                               MOE_TRAIT_GQA | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_ATTN_V_BIAS] = {"attn_v.bias", MOE_DIM_VALUES, MOE_DIM_NONE,
                               MOE_TRAIT_GQA | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_ATTN_OUT] = {"attn_output.weight", MOE_DIM_ATTENDED, MOE_DIM_EMBD,
                            MOE_TRAIT_ATTENTION},
    [MOE_LAYER_ATTN_OUT_BIAS] = {"attn_output.bias", MOE_DIM_EMBD, MOE_DIM_NONE,
                                 MOE_TRAIT_GQA | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_ATTN_GATE] = {"attn_gate.weight", MOE_DIM_EMBD, MOE_DIM_GATES, MOE_TRAIT_GATE},
    [MOE_LAYER_ATTN_SINKS] = {"attn_sinks.weight", MOE_DIM_HEADS, MOE_DIM_NONE, MOE_TRAIT_SINKS},
    [MOE_LAYER_ATTN_Q_NORM] = {"attn_q_norm.weight", MOE_DIM_Q_NORM, MOE_DIM_NONE,
                               MOE_TRAIT_QK_NORM},
    [MOE_LAYER_ATTN_K_NORM] = {"attn_k_norm.weight", MOE_DIM_K_NORM, MOE_DIM_NONE,
                               MOE_TRAIT_QK_NORM},
    [MOE_LAYER_ATTN_Q_A] = {"attn_q_a.weight", MOE_DIM_EMBD, MOE_DIM_Q_RANK, MOE_TRAIT_Q_RANK},
    [MOE_LAYER_ATTN_Q_A_NORM] = {"attn_q_a_norm.weight", MOE_DIM_Q_RANK, MOE_DIM_NONE,
                                 MOE_TRAIT_Q_RANK},
    [MOE_LAYER_ATTN_Q_B] = {"attn_q_b.weight", MOE_DIM_Q_RANK, MOE_DIM_QUERIES, MOE_TRAIT_Q_RANK},
    [MOE_LAYER_ATTN_KV_A] = {"attn_kv_a_mqa.weight", MOE_DIM_EMBD, MOE_DIM_KV_RANK_ROT,
                             MOE_TRAIT_MLA},
    [MOE_LAYER_ATTN_KV_A_NORM] = {"attn_kv_a_norm.weight", MOE_DIM_KV_RANK, MOE_DIM_NONE,
                                  MOE_TRAIT_MLA},
    [MOE_LAYER_ATTN_KV_B] = {"attn_kv_b.weight", MOE_DIM_KV_RANK, MOE_DIM_HEADS_NOPE_V,
                             MOE_TRAIT_KV_JOINED},
    [MOE_LAYER_ATTN_K_B] = {"attn_k_b.weight", MOE_DIM_NOPE, MOE_DIM_HEADS_RANK,
                            MOE_TRAIT_KV_SPLIT},
    [MOE_LAYER_ATTN_V_B] = {"attn_v_b.weight", MOE_DIM_KV_RANK, MOE_DIM_HEADS_V,
                            MOE_TRAIT_KV_SPLIT},
    [MOE_LAYER_INDEX_Q] = {"indexer.attn_q_b.weight", MOE_DIM_Q_RANK, MOE_DIM_INDEX_QUERIES,
                           MOE_TRAIT_INDEXER},
    [MOE_LAYER_INDEX_K] = {"indexer.attn_k.weight", MOE_DIM_EMBD, MOE_DIM_INDEX, MOE_TRAIT_INDEXER},
    [MOE_LAYER_INDEX_K_NORM] = {"indexer.k_norm.weight", MOE_DIM_INDEX, MOE_DIM_NONE,
                                MOE_TRAIT_INDEXER},
    [MOE_LAYER_INDEX_K_NORM_BIAS] = {"indexer.k_norm.bias", MOE_DIM_INDEX, MOE_DIM_NONE,
                                     MOE_TRAIT_INDEXER},
    [MOE_LAYER_INDEX_WEIGHTS] = {"indexer.proj.weight", MOE_DIM_EMBD, MOE_DIM_INDEX_HEADS,
                                 MOE_TRAIT_INDEXER},
    [MOE_LAYER_DELTA_QKV] = {"attn_qkv.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_PROJECTED,
                             MOE_TRAIT_DELTA},
    [MOE_LAYER_DELTA_Z] = {"attn_gate.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_INNER,
                           MOE_TRAIT_DELTA_SPLIT},
    [MOE_LAYER_DELTA_BA] = {"ssm_ba.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_GATES,
                            MOE_TRAIT_DELTA_GROUPED},
    [MOE_LAYER_DELTA_BETA] = {"ssm_beta.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_HEADS,
                              MOE_TRAIT_DELTA_TILED},
    [MOE_LAYER_DELTA_ALPHA] = {"ssm_alpha.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_HEADS,
                               MOE_TRAIT_DELTA_TILED},
    [MOE_LAYER_DELTA_CONV] = {"ssm_conv1d.weight", MOE_DIM_DELTA_KERNEL, MOE_DIM_DELTA_CHANNELS,
                              MOE_TRAIT_HEADS | MOE_TRAIT_F32},
    [MOE_LAYER_DELTA_DECAY] = {"ssm_a", MOE_DIM_DELTA_HEADS, MOE_DIM_NONE, MOE_TRAIT_DELTA},
    [MOE_LAYER_DELTA_DT_BIAS] = {"ssm_dt.bias", MOE_DIM_DELTA_HEADS, MOE_DIM_NONE, MOE_TRAIT_HEADS},
    [MOE_LAYER_DELTA_NORM] = {"ssm_norm.weight", MOE_DIM_DELTA_VALUE, MOE_DIM_NONE,
                              MOE_TRAIT_DELTA},
    [MOE_LAYER_DELTA_OUT] = {"ssm_out.weight", MOE_DIM_DELTA_INNER, MOE_DIM_EMBD, MOE_TRAIT_HEADS},
    [MOE_LAYER_SPACE_IN] = {"ssm_in.weight", MOE_DIM_EMBD, MOE_DIM_SPACE_PROJECTED,
                            MOE_TRAIT_SPACE},
    [MOE_LAYER_SPACE_CONV_BIAS] = {"ssm_conv1d.bias", MOE_DIM_DELTA_CHANNELS, MOE_DIM_NONE,
                                   MOE_TRAIT_SPACE | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_SPACE_DECAY] = {"ssm_a", MOE_DIM_ONE, MOE_DIM_DELTA_HEADS,
                               MOE_TRAIT_SPACE | MOE_TRAIT_F32},
    [MOE_LAYER_SPACE_SKIP] = {"ssm_d", MOE_DIM_ONE, MOE_DIM_DELTA_HEADS,
                              MOE_TRAIT_SPACE | MOE_TRAIT_F32},
    [MOE_LAYER_SPACE_NORM] = {"ssm_norm.weight", MOE_DIM_SPACE_GROUP, MOE_DIM_SPACE_GROUPS,
                              MOE_TRAIT_SPACE | MOE_TRAIT_F32},
    [MOE_LAYER_CHANNEL_Q] = {"attn_q.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_INNER,
                             MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_K] = {"attn_k.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_INNER,
                             MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_V] = {"attn_v.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_INNER,
                             MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_CONV_Q] = {"ssm_conv1d_q.weight", MOE_DIM_DELTA_KERNEL, MOE_DIM_DELTA_INNER,
                                  MOE_TRAIT_CHANNELS | MOE_TRAIT_F32},
    [MOE_LAYER_CHANNEL_CONV_K] = {"ssm_conv1d_k.weight", MOE_DIM_DELTA_KERNEL, MOE_DIM_DELTA_INNER,
                                  MOE_TRAIT_CHANNELS | MOE_TRAIT_F32},
    [MOE_LAYER_CHANNEL_CONV_V] = {"ssm_conv1d_v.weight", MOE_DIM_DELTA_KERNEL, MOE_DIM_DELTA_INNER,
                                  MOE_TRAIT_CHANNELS | MOE_TRAIT_F32},
    [MOE_LAYER_CHANNEL_F_A] = {"ssm_f_a.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_VALUE,
                               MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_F_B] = {"ssm_f_b.weight", MOE_DIM_DELTA_VALUE, MOE_DIM_DELTA_INNER,
                               MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_G_A] = {"ssm_g_a.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_VALUE,
                               MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_G_B] = {"ssm_g_b.weight", MOE_DIM_DELTA_VALUE, MOE_DIM_DELTA_INNER,
                               MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_BETA] = {"ssm_beta.weight", MOE_DIM_EMBD, MOE_DIM_DELTA_HEADS,
                                MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_DECAY] = {"ssm_a", MOE_DIM_ONE, MOE_DIM_DELTA_HEADS,
                                 MOE_TRAIT_CHANNELS | MOE_TRAIT_F32},
    [MOE_LAYER_CHANNEL_DT_BIAS] = {"ssm_dt.bias", MOE_DIM_DELTA_INNER, MOE_DIM_NONE,
                                   MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_NORM] = {"ssm_norm.weight", MOE_DIM_DELTA_VALUE, MOE_DIM_NONE,
                                MOE_TRAIT_CHANNELS},
    [MOE_LAYER_CHANNEL_OUT] = {"attn_output.weight", MOE_DIM_DELTA_INNER, MOE_DIM_EMBD,
                               MOE_TRAIT_CHANNELS},
    [MOE_LAYER_SCAN_IN] = {"ssm_in.weight", MOE_DIM_EMBD, MOE_DIM_SCAN_PROJECTED, MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_CONV] = {"ssm_conv1d.weight", MOE_DIM_DELTA_KERNEL, MOE_DIM_DELTA_CHANNELS,
                             MOE_TRAIT_SCAN | MOE_TRAIT_F32},
    [MOE_LAYER_SCAN_CONV_BIAS] = {"ssm_conv1d.bias", MOE_DIM_DELTA_CHANNELS, MOE_DIM_NONE,
                                  MOE_TRAIT_SCAN | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_SCAN_X] = {"ssm_x.weight", MOE_DIM_DELTA_CHANNELS, MOE_DIM_SCAN_PARTS,
                          MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_STEP] = {"ssm_dt.weight", MOE_DIM_SCAN_RANK, MOE_DIM_DELTA_CHANNELS,
                             MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_STEP_BIAS] = {"ssm_dt.bias", MOE_DIM_DELTA_CHANNELS, MOE_DIM_NONE,
                                  MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_STEP_NORM] = {"ssm_dt_norm.weight", MOE_DIM_SCAN_RANK, MOE_DIM_NONE,
                                  MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_K_NORM] = {"ssm_b_norm.weight", MOE_DIM_SCAN_STATE, MOE_DIM_NONE,
                               MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_Q_NORM] = {"ssm_c_norm.weight", MOE_DIM_SCAN_STATE, MOE_DIM_NONE,
                               MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_DECAY] = {"ssm_a", MOE_DIM_SCAN_STATE, MOE_DIM_DELTA_CHANNELS,
                              MOE_TRAIT_SCAN | MOE_TRAIT_F32},
    [MOE_LAYER_SCAN_SKIP] = {"ssm_d", MOE_DIM_DELTA_CHANNELS, MOE_DIM_NONE, MOE_TRAIT_SCAN},
    [MOE_LAYER_SCAN_OUT] = {"ssm_out.weight", MOE_DIM_DELTA_CHANNELS, MOE_DIM_EMBD, MOE_TRAIT_SCAN},
    [MOE_LAYER_CONV_IN] = {"shortconv.in_proj.weight", MOE_DIM_EMBD, MOE_DIM_CONV_PROJECTED,
                           MOE_TRAIT_CONVOLUTION},
    [MOE_LAYER_CONV_TAPS] = {"shortconv.conv.weight", MOE_DIM_DELTA_KERNEL, MOE_DIM_DELTA_CHANNELS,
                             MOE_TRAIT_CONVOLUTION | MOE_TRAIT_F32},
    [MOE_LAYER_CONV_OUT] = {"shortconv.out_proj.weight", MOE_DIM_DELTA_CHANNELS, MOE_DIM_EMBD,
                            MOE_TRAIT_CONVOLUTION},
    [MOE_LAYER_FFN_NORM] = {"ffn_norm.weight", MOE_DIM_EMBD, MOE_DIM_NONE, MOE_TRAIT_FFN_NORM},
    [MOE_LAYER_FFN_NORM_BIAS] = {"ffn_norm.bias", MOE_DIM_EMBD, MOE_DIM_NONE,
                                 MOE_TRAIT_FFN_NORM | MOE_TRAIT_MEAN_NORM | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_FFN_POST_NORM] = {"", MOE_DIM_EMBD, MOE_DIM_NONE, MOE_TRAIT_FFN_POST_NORM},
    [MOE_LAYER_EXPERTS_NORM] = {"", MOE_DIM_EMBD, MOE_DIM_NONE, MOE_TRAIT_EXPERTS_NORM},
    [MOE_LAYER_EXPERTS_POST_NORM] = {"post_ffw_norm_2.weight", MOE_DIM_EMBD, MOE_DIM_NONE,
                                     MOE_TRAIT_BRANCH_NORMS},
    [MOE_LAYER_SHARED_POST_NORM] = {"post_ffw_norm_1.weight", MOE_DIM_EMBD, MOE_DIM_NONE,
                                    MOE_TRAIT_BRANCH_NORMS},
    [MOE_LAYER_OUT_SCALE] = {"layer_output_scale.weight", MOE_DIM_ONE, MOE_DIM_NONE,
                             MOE_TRAIT_LAYER_SCALE | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_ROUTER_NORM] = {"ffn_gate_inp.scale", MOE_DIM_EMBD, MOE_DIM_NONE,
                               MOE_TRAIT_ROUTER_NORM},
    [MOE_LAYER_EXPERTS_SCALE] = {"ffn_down_exps.scale", MOE_DIM_EXPERTS, MOE_DIM_NONE,
                                 MOE_TRAIT_EXPERT_SCALES | MOE_TRAIT_OPTIONAL},
    [MOE_LAYER_FFN_GATE] = {"ffn_gate.weight", MOE_DIM_EMBD, MOE_DIM_FF_DENSE,
                            MOE_TRAIT_DENSE | MOE_TRAIT_GATE_MATRIX},
    [MOE_LAYER_FFN_UP] = {"ffn_up.weight", MOE_DIM_EMBD, MOE_DIM_FF_DENSE, MOE_TRAIT_DENSE},
    [MOE_LAYER_FFN_DOWN] = {"ffn_down.weight", MOE_DIM_FF_DENSE, MOE_DIM_EMBD, MOE_TRAIT_DENSE},
    [MOE_LAYER_ROUTER] = {"ffn_gate_inp.weight", MOE_DIM_EMBD, MOE_DIM_EXPERTS, MOE_TRAIT_EXPERTS},
    [MOE_LAYER_ROUTER_BIAS] = {"ffn_gate_inp.bias", MOE_DIM_EXPERTS, MOE_DIM_NONE,
                               MOE_TRAIT_EXPERT_BIASES},
    [MOE_LAYER_LATENT_IN] = {"ffn_latent_down.weight", MOE_DIM_EMBD, MOE_DIM_EXPERT_IN,
                             MOE_TRAIT_LATENT},
    [MOE_LAYER_LATENT_OUT] = {"ffn_latent_up.weight", MOE_DIM_EXPERT_IN, MOE_DIM_EMBD,
                              MOE_TRAIT_LATENT},
    [MOE_LAYER_EXPERTS_GATE_BIAS] = {"ffn_gate_exps.bias", MOE_DIM_FF_EXPERT, MOE_DIM_EXPERTS,
                                     MOE_TRAIT_EXPERT_BIASES | MOE_TRAIT_F32},
    [MOE_LAYER_EXPERTS_UP_BIAS] = {"ffn_up_exps.bias", MOE_DIM_FF_EXPERT, MOE_DIM_EXPERTS,
                                   MOE_TRAIT_EXPERT_BIASES | MOE_TRAIT_F32},
    [MOE_LAYER_EXPERTS_DOWN_BIAS] = {"ffn_down_exps.bias", MOE_DIM_EMBD, MOE_DIM_EXPERTS,
                                     MOE_TRAIT_EXPERT_BIASES | MOE_TRAIT_F32},
    [MOE_LAYER_ROUTER_SELECTION_BIAS] = {"exp_probs_b.bias", MOE_DIM_EXPERTS, MOE_DIM_NONE,
                                         MOE_TRAIT_SELECTION_BIAS},
    [MOE_LAYER_SHARED_GATE] = {"ffn_gate_shexp.weight", MOE_DIM_EMBD, MOE_DIM_FF_SHARED,
                               MOE_TRAIT_SHARED | MOE_TRAIT_GATE_MATRIX},
    [MOE_LAYER_SHARED_UP] = {"ffn_up_shexp.weight", MOE_DIM_EMBD, MOE_DIM_FF_SHARED,
                             MOE_TRAIT_SHARED},
    [MOE_LAYER_SHARED_DOWN] = {"ffn_down_shexp.weight", MOE_DIM_FF_SHARED, MOE_DIM_EMBD,
                               MOE_TRAIT_SHARED},
    [MOE_LAYER_SHARED_ROUTER] = {"ffn_gate_inp_shexp.weight", MOE_DIM_EMBD, MOE_DIM_ONE,
                                 MOE_TRAIT_SHARED_GATED},
};

const char *moe_tensor_name(const moe_model_config *config, moe_layer_tensor tensor)
{
    const char *dense = NULL;
    if (config->shared_dense && tensor >= MOE_LAYER_SHARED_GATE &&
        tensor <= MOE_LAYER_SHARED_DOWN) {
        dense = moe_tensor_rows[MOE_LAYER_FFN_GATE + (tensor - MOE_LAYER_SHARED_GATE)].name;
    }
    switch (tensor) {
    case MOE_LAYER_FFN_NORM:
        return config->ffn_norm_tensor;
    case MOE_LAYER_ATTN_POST_NORM:
        return config->attn_post_norm_tensor;
    case MOE_LAYER_FFN_POST_NORM:
        return config->ffn_post_norm_tensor;
    case MOE_LAYER_EXPERTS_NORM:
        return config->experts_norm_tensor;
    case MOE_LAYER_ROUTER_SELECTION_BIAS:
        return config->gate_bias_tensor;
    case MOE_LAYER_DELTA_QKV:
        return config->recurrence.in_groups ? "ssm_in.weight" : moe_tensor_rows[tensor].name;
    default:
        return dense != NULL ? dense : moe_tensor_rows[tensor].name;
    }
}

bool moe_tensor_is_optional(const moe_model_config *config, moe_layer_tensor tensor)
{
    switch (tensor) {
    case MOE_LAYER_ATTN_V:
        return config->values_optional;
    case MOE_LAYER_ATTN_SINKS:
        return config->sinks_optional;
    case MOE_LAYER_ATTN_GATE:
        return config->attention_gate == MOE_ATTENTION_GATE_HEADS;
    default:
        return (moe_tensor_rows[tensor].traits & MOE_TRAIT_OPTIONAL) != 0;
    }
}

void moe_tensor_dims(const moe_model_config *config, uint32_t layer, uint64_t dims[MOE_DIM_COUNT])
{
    const moe_heads *heads = &config->layers[layer].heads;
    bool mla = config->attention == MOE_ATTENTION_MLA;
    bool full = config->qk_norm == MOE_QK_NORM_FULL;
    uint64_t n_head = heads->n;
    uint64_t query_dim = mla ? config->qk_nope_dim + config->n_rot : heads->k_dim;
    dims[MOE_DIM_NONE] = 1;
    dims[MOE_DIM_ONE] = 1;
    dims[MOE_DIM_EMBD] = config->n_embd;
    bool joined = config->attention_gate == MOE_ATTENTION_GATE_JOINED;
    bool by_head = config->attention_gate == MOE_ATTENTION_GATE_HEADS;
    dims[MOE_DIM_QUERIES] = n_head * query_dim * (joined ? 2 : 1);
    dims[MOE_DIM_KEYS] = (uint64_t)heads->n_kv * heads->k_dim;
    dims[MOE_DIM_VALUES] = (uint64_t)heads->n_kv * heads->v_dim;
    dims[MOE_DIM_ATTENDED] = n_head * (mla ? config->v_head_dim : heads->v_dim);
    dims[MOE_DIM_GATES] = by_head ? n_head : dims[MOE_DIM_ATTENDED];
    dims[MOE_DIM_Q_NORM] = full ? n_head * query_dim : heads->k_dim;
    dims[MOE_DIM_K_NORM] = full ? dims[MOE_DIM_KEYS] : heads->k_dim;
    dims[MOE_DIM_Q_RANK] = config->q_lora_rank;
    dims[MOE_DIM_KV_RANK] = config->kv_lora_rank;
    dims[MOE_DIM_KV_RANK_ROT] = (uint64_t)config->kv_lora_rank + config->n_rot;
    dims[MOE_DIM_NOPE] = config->qk_nope_dim;
    dims[MOE_DIM_HEADS_NOPE_V] = n_head * ((uint64_t)config->qk_nope_dim + config->v_head_dim);
    dims[MOE_DIM_HEADS_RANK] = n_head * config->kv_lora_rank;
    dims[MOE_DIM_HEADS_V] = n_head * config->v_head_dim;
    dims[MOE_DIM_FF_DENSE] = config->n_ff_dense;
    dims[MOE_DIM_FF_SHARED] = config->n_ff_shared;
    dims[MOE_DIM_EXPERTS] = config->n_expert;
    dims[MOE_DIM_HEADS] = n_head;
    dims[MOE_DIM_FF_EXPERT] = config->n_ff_expert;
    dims[MOE_DIM_EXPERT_IN] = config->n_expert_in;
    dims[MOE_DIM_INDEX] = config->index_dim;
    dims[MOE_DIM_INDEX_HEADS] = config->index_heads;
    dims[MOE_DIM_INDEX_QUERIES] = (uint64_t)config->index_heads * config->index_dim;
    const moe_recurrence *delta = &config->recurrence;
    uint64_t inner = (uint64_t)delta->n_head * delta->value_dim;
    dims[MOE_DIM_DELTA_CHANNELS] = delta->conv_channels;
    dims[MOE_DIM_DELTA_INNER] = inner;
    dims[MOE_DIM_DELTA_PROJECTED] = delta->conv_channels + (delta->in_groups ? inner : 0);
    dims[MOE_DIM_DELTA_GATES] = delta->n_gates;
    dims[MOE_DIM_DELTA_HEADS] = delta->n_head;
    dims[MOE_DIM_DELTA_VALUE] = delta->value_dim;
    dims[MOE_DIM_DELTA_KERNEL] = delta->conv_kernel;
    dims[MOE_DIM_CONV_PROJECTED] = 3 * (uint64_t)delta->conv_channels;
    dims[MOE_DIM_SPACE_PROJECTED] = inner + delta->conv_channels + delta->n_head;
    dims[MOE_DIM_SPACE_GROUPS] = delta->n_key_head;
    dims[MOE_DIM_SCAN_PROJECTED] = 2 * (uint64_t)delta->conv_channels;
    dims[MOE_DIM_SCAN_RANK] = delta->step_rank;
    dims[MOE_DIM_SCAN_STATE] = delta->key_dim;
    dims[MOE_DIM_SCAN_PARTS] = (uint64_t)delta->step_rank + 2 * delta->key_dim;
    dims[MOE_DIM_SPACE_GROUP] = delta->n_key_head > 0 ? inner / delta->n_key_head : 0;
}

static uint64_t recurrent_traits(const moe_recurrence *c)
{
    if (c->kind == MOE_RECURRENCE_CONVOLUTION) {
        return MOE_TRAIT_CONVOLUTION;
    }
    if (c->kind == MOE_RECURRENCE_CHANNELS) {
        return MOE_TRAIT_CHANNELS;
    }
    if (c->kind == MOE_RECURRENCE_SPACE) {
        return MOE_TRAIT_SPACE | MOE_TRAIT_HEADS;
    }
    if (c->kind == MOE_RECURRENCE_SCAN) {
        return MOE_TRAIT_SCAN;
    }
    return MOE_TRAIT_DELTA | MOE_TRAIT_HEADS |
           (c->tiled ? MOE_TRAIT_DELTA_TILED : MOE_TRAIT_DELTA_GROUPED) |
           (c->in_groups ? 0 : MOE_TRAIT_DELTA_SPLIT);
}

static uint64_t mixer_traits(const moe_model_config *config, moe_mixer_kind mixer)
{
    bool mla = mixer == MOE_MIXER_LATENT;
    if (mixer == MOE_MIXER_NONE) {
        return 0;
    }
    if (mixer == MOE_MIXER_RECURRENT) {
        return MOE_TRAIT_MIXER | recurrent_traits(&config->recurrence);
    }
    uint64_t traits = MOE_TRAIT_MIXER | MOE_TRAIT_ATTENTION | (mla ? MOE_TRAIT_MLA : MOE_TRAIT_GQA);
    traits |= mla && config->q_lora_rank > 0 ? MOE_TRAIT_Q_RANK : MOE_TRAIT_Q_DIRECT;
    traits |= config->attention_sinks ? MOE_TRAIT_SINKS : 0;
    traits |= config->attention_gate >= MOE_ATTENTION_GATE_OWN ? MOE_TRAIT_GATE : 0;
    bool weighted = config->qk_norm == MOE_QK_NORM_HEAD || config->qk_norm == MOE_QK_NORM_FULL;
    return weighted ? traits | MOE_TRAIT_QK_NORM : traits;
}

static unsigned norm_traits(const moe_model_config *config, const moe_layer_kind *kind)
{
    unsigned traits = config->norm == MOE_NORM_MEAN ? MOE_TRAIT_MEAN_NORM : 0;
    traits |= config->attn_post_norm_tensor != NULL ? MOE_TRAIT_ATTN_POST_NORM : 0;
    traits |= config->ffn_post_norm_tensor != NULL ? MOE_TRAIT_FFN_POST_NORM : 0;
    bool parallel = (config->family_traits & MOE_TRAIT_PARALLEL) != 0;
    bool has_norm = !parallel && kind->feed_forward != MOE_FEED_FORWARD_NONE;
    traits |= has_norm ? MOE_TRAIT_FFN_NORM : 0;
    return traits | (unsigned)(config->family_traits & MOE_TRAIT_LAYER_SCALE);
}

uint64_t moe_layer_traits(const moe_model_config *config, uint32_t layer)
{
    const moe_layer_kind *kind = &config->layers[layer];
    uint64_t traits = mixer_traits(config, kind->mixer) | norm_traits(config, kind);
    traits |= kind->indexer == MOE_INDEXER_OWN ? MOE_TRAIT_INDEXER : 0;
    traits |= config->no_gate_matrix ? 0 : MOE_TRAIT_GATE_MATRIX;
    if (kind->feed_forward == MOE_FEED_FORWARD_NONE) {
        return traits;
    }
    if (kind->feed_forward == MOE_FEED_FORWARD_DENSE) {
        return traits | MOE_TRAIT_DENSE;
    }
    traits |= MOE_TRAIT_EXPERTS;
    traits |= moe_experts_are_latent(config) ? MOE_TRAIT_LATENT : 0;
    traits |= config->expert_biases ? MOE_TRAIT_EXPERT_BIASES : 0;
    traits |= config->family_traits &
              (MOE_TRAIT_EXPERTS_NORM | MOE_TRAIT_ROUTER_NORM | MOE_TRAIT_EXPERT_SCALES);
    if (kind->feed_forward == MOE_FEED_FORWARD_BOTH) {
        traits |= config->family_traits & MOE_TRAIT_BRANCH_NORMS;
        traits |=
            config->shared_gated ? MOE_TRAIT_SHARED | MOE_TRAIT_SHARED_GATED : MOE_TRAIT_SHARED;
    }
    if (config->gate_selection_bias) {
        traits |= MOE_TRAIT_SELECTION_BIAS;
    }
    return traits;
}

bool moe_tensor_may_be_scaled(const char *name)
{
    static const char *const roles[] = {
        "attn_q",        "attn_k",         "attn_v",        "attn_qkv",
        "attn_output",   "attn_gate",      "ffn_gate",      "ffn_up",
        "ffn_down",      "ffn_gate_shexp", "ffn_up_shexp",  "ffn_down_shexp",
        "ffn_gate_exps", "ffn_up_exps",    "ffn_down_exps", "output"};
    const char *end = strrchr(name, '.');
    const char *role = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') + 1 : name;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        size_t size = strlen(roles[i]);
        if ((size_t)(end - role) == size && memcmp(role, roles[i], size) == 0) {
            return strcmp(end, ".weight") == 0;
        }
    }
    return false;
}
