/* SPDX-License-Identifier: MIT */
/* Whole small models for gguf_builder.h, laid out as the converters lay them out. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "tests/model/gguf_builder.h"

gb_model gb_model_preset(const char *architecture)
{
    gb_model model = {.architecture = architecture,
                      .n_layer = 2,
                      .n_embd = 64,
                      .n_vocab = 96,
                      .n_head = 4,
                      .n_head_kv = 2,
                      .head_dim = 16,
                      .n_ff = 96,
                      .n_expert = 8,
                      .n_used = 2,
                      .n_ff_expert = 32,
                      .n_group = 1,
                      .n_group_used = 1};
    if (strcmp(architecture, "llama") == 0 || strcmp(architecture, "olmoe") == 0) {
        model.n_ff = model.n_ff_expert;
    }
    if (strcmp(architecture, "qwen2moe") == 0) {
        model.n_shared = 1;
    }
    if (strncmp(architecture, "deepseek", 8) == 0) {
        model.n_dense_lead = strcmp(architecture, "deepseek4") != 0;
        model.n_shared = 2;
    }
    if (strcmp(architecture, "deepseek2") == 0) {
        model.head_dim = 48; /* nope 32 + rot 16 */
        model.n_rot = 16;
        model.kv_rank = 32;
        model.v_dim = 32;
    }
    return model;
}

static void key_u32(gguf_builder *b, const gb_model *model, const char *suffix, int value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", model->architecture, suffix);
    gb_u32(b, key, (uint32_t)value);
}

static void key_f32(gguf_builder *b, const gb_model *model, const char *suffix, float value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", model->architecture, suffix);
    gb_f32(b, key, value);
}

static int is(const gb_model *model, const char *architecture)
{
    return strcmp(model->architecture, architecture) == 0;
}

static void add_attention_keys(gguf_builder *b, const gb_model *model)
{
    int mla = model->kv_rank > 0;
    key_u32(b, model, "attention.head_count", model->n_head);
    if (!mla) {
        key_u32(b, model, "attention.head_count_kv", model->n_head_kv);
        key_u32(b, model, "attention.key_length", model->head_dim);
        key_u32(b, model, "attention.value_length", model->head_dim);
        return;
    }
    key_u32(b, model, "attention.kv_lora_rank", model->kv_rank);
    if (model->q_rank > 0) {
        key_u32(b, model, "attention.q_lora_rank", model->q_rank);
    }
    key_u32(b, model, "rope.dimension_count", model->n_rot);
    if (model->joined_kv) {
        key_u32(b, model, "attention.head_count_kv", model->n_head);
        key_u32(b, model, "attention.key_length", model->head_dim);
        key_u32(b, model, "attention.value_length", model->v_dim);
    } else {
        key_u32(b, model, "attention.head_count_kv", 1);
        key_u32(b, model, "attention.key_length", model->kv_rank + model->n_rot);
        key_u32(b, model, "attention.value_length", model->kv_rank);
        key_u32(b, model, "attention.key_length_mla", model->head_dim);
        key_u32(b, model, "attention.value_length_mla", model->v_dim);
    }
}

static void add_keys(gguf_builder *b, const gb_model *model)
{
    gb_string(b, "general.architecture", model->architecture);
    key_u32(b, model, "block_count", model->n_layer);
    key_u32(b, model, "context_length", 256);
    key_u32(b, model, "embedding_length", model->n_embd);
    key_u32(b, model, "feed_forward_length", model->n_ff);
    key_f32(b, model, "attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(b, model, "rope.freq_base", 10000.0f);
    key_u32(b, model, "vocab_size", model->n_vocab);
    key_u32(b, model, "expert_count", model->n_expert);
    key_u32(b, model, "expert_used_count", model->n_used);
    add_attention_keys(b, model);
    if (!is(model, "llama") && !is(model, "olmoe")) {
        key_u32(b, model, "expert_feed_forward_length", model->n_ff_expert);
    }
    if (is(model, "qwen2moe")) {
        key_u32(b, model, "expert_shared_feed_forward_length", model->n_shared * 32);
    } else if (model->n_shared > 0) {
        key_u32(b, model, "expert_shared_count", model->n_shared);
        key_u32(b, model, "leading_dense_block_count", model->n_dense_lead);
        key_f32(b, model, "expert_weights_scale", 1.5f);
    }
    if (model->n_group > 1) {
        key_u32(b, model, "expert_group_count", model->n_group);
        key_u32(b, model, "expert_group_used_count", model->n_group_used);
    }
    if (model->selection_bias) {
        key_u32(b, model, "expert_gating_func", 2);
    }
}

/* Name of a tensor of a layer. The ring of buffers lets one call use two names. */
static const char *in_layer(int layer, const char *suffix, char name[64])
{
    snprintf(name, 64, "blk.%d.%s", layer, suffix);
    return name;
}

static void vector(gguf_builder *b, int layer, const char *suffix, int size)
{
    char name[64];
    gb_tensor(b, in_layer(layer, suffix, name), MOE_DTYPE_F32, 1, size);
}

static void matrix(gguf_builder *b, const gb_model *model, int layer, const char *suffix, int n_in,
                   int n_out)
{
    char name[64];
    gb_tensor(b, in_layer(layer, suffix, name), model->matrix_type, 2, n_in, n_out);
}

static void add_attention(gguf_builder *b, const gb_model *model, int l)
{
    int queries = model->n_head * model->head_dim;
    int keys = model->n_head_kv * model->head_dim;
    matrix(b, model, l, "attn_q.weight", model->n_embd, queries);
    matrix(b, model, l, "attn_k.weight", model->n_embd, keys);
    matrix(b, model, l, "attn_v.weight", model->n_embd, keys);
    matrix(b, model, l, "attn_output.weight", queries, model->n_embd);
    if (is(model, "qwen2moe")) {
        vector(b, l, "attn_q.bias", queries);
        vector(b, l, "attn_k.bias", keys);
        vector(b, l, "attn_v.bias", keys);
    } else if (is(model, "qwen3moe")) {
        vector(b, l, "attn_q_norm.weight", model->head_dim);
        vector(b, l, "attn_k_norm.weight", model->head_dim);
    } else if (is(model, "olmoe")) {
        vector(b, l, "attn_q_norm.weight", queries);
        vector(b, l, "attn_k_norm.weight", keys);
    }
}

static void add_latent_attention(gguf_builder *b, const gb_model *model, int l)
{
    char name[64];
    int nope = model->head_dim - model->n_rot;
    int queries = model->n_head * model->head_dim;
    if (model->q_rank > 0) {
        matrix(b, model, l, "attn_q_a.weight", model->n_embd, model->q_rank);
        vector(b, l, "attn_q_a_norm.weight", model->q_rank);
        matrix(b, model, l, "attn_q_b.weight", model->q_rank, queries);
    } else {
        matrix(b, model, l, "attn_q.weight", model->n_embd, queries);
    }
    matrix(b, model, l, "attn_kv_a_mqa.weight", model->n_embd, model->kv_rank + model->n_rot);
    vector(b, l, "attn_kv_a_norm.weight", model->kv_rank);
    if (model->joined_kv) {
        matrix(b, model, l, "attn_kv_b.weight", model->kv_rank,
               model->n_head * (nope + model->v_dim));
    } else {
        gb_tensor(b, in_layer(l, "attn_k_b.weight", name), model->matrix_type, 3, nope,
                  model->kv_rank, model->n_head);
        gb_tensor(b, in_layer(l, "attn_v_b.weight", name), model->matrix_type, 3, model->kv_rank,
                  model->v_dim, model->n_head);
    }
    matrix(b, model, l, "attn_output.weight", model->n_head * model->v_dim, model->n_embd);
}

static void add_expert_part(gguf_builder *b, const gb_model *model, int l, const char *part,
                            int n_in, int n_out)
{
    char name[64];
    if (!model->single_experts) {
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", l, part);
        gb_tensor(b, name, model->expert_type, 3, n_in, n_out, model->n_expert);
        return;
    }
    for (int e = 0; e < model->n_expert; e++) {
        snprintf(name, sizeof name, "blk.%d.ffn_%s.%d.weight", l, part, e);
        gb_tensor(b, name, model->expert_type, 2, n_in, n_out);
    }
}

static void add_experts(gguf_builder *b, const gb_model *model, int l)
{
    char name[64];
    gb_tensor(b, in_layer(l, "ffn_gate_inp.weight", name), MOE_DTYPE_F32, 2, model->n_embd,
              model->n_expert);
    if (model->fused_experts) {
        add_expert_part(b, model, l, "gate_up", model->n_embd, 2 * model->n_ff_expert);
    } else {
        add_expert_part(b, model, l, "gate", model->n_embd, model->n_ff_expert);
        add_expert_part(b, model, l, "up", model->n_embd, model->n_ff_expert);
    }
    add_expert_part(b, model, l, "down", model->n_ff_expert, model->n_embd);
    if (model->n_shared > 0) {
        int n_ff = model->n_shared * model->n_ff_expert;
        matrix(b, model, l, "ffn_gate_shexp.weight", model->n_embd, n_ff);
        matrix(b, model, l, "ffn_up_shexp.weight", model->n_embd, n_ff);
        matrix(b, model, l, "ffn_down_shexp.weight", n_ff, model->n_embd);
    }
    if (is(model, "qwen2moe")) {
        vector(b, l, "ffn_gate_inp_shexp.weight", model->n_embd);
    }
    if (model->selection_bias) {
        vector(b, l, "exp_probs_b.bias", model->n_expert);
    }
}

gguf_builder *gb_model_build(const gb_model *model)
{
    gguf_builder *b = gb_new();
    add_keys(b, model);
    gb_tensor(b, "token_embd.weight", model->matrix_type, 2, model->n_embd, model->n_vocab);
    for (int l = 0; l < model->n_layer; l++) {
        vector(b, l, "attn_norm.weight", model->n_embd);
        if (model->kv_rank > 0) {
            add_latent_attention(b, model, l);
        } else {
            add_attention(b, model, l);
        }
        vector(b, l, "ffn_norm.weight", model->n_embd);
        if (l >= model->n_dense_lead) {
            add_experts(b, model, l);
        } else {
            matrix(b, model, l, "ffn_gate.weight", model->n_embd, model->n_ff);
            matrix(b, model, l, "ffn_up.weight", model->n_embd, model->n_ff);
            matrix(b, model, l, "ffn_down.weight", model->n_ff, model->n_embd);
        }
    }
    gb_tensor(b, "output_norm.weight", MOE_DTYPE_F32, 1, model->n_embd);
    if (!model->tied) {
        gb_tensor(b, "output.weight", model->matrix_type, 2, model->n_embd, model->n_vocab);
    }
    return b;
}
