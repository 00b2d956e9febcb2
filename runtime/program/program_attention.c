/* SPDX-License-Identifier: MIT */
/* Attention: projections, norms and rotary embedding of heads, storing in the KV cache, attention,
 * its gate, its output.
 *
 * MLA runs in its absorbed form: the cache holds one latent (and one rotary key) per position. k_b
 * maps the queries' part without position into the latent's space, and v_b maps the attended latent
 * out of it. */
#include <stdio.h>

#include "runtime/base/error.h"
#include "runtime/program/program_builder.h"

#define INDEX_NORM_EPS 1e-6f /* as in most models; no key states it */

static void turn(moe_program_builder *b, moe_operand x, uint32_t n_head, moe_rope_kind kind,
                 bool window)
{
    const moe_model_config *c = b->config;
    uint32_t n_rot = window ? c->window_n_rot : c->n_rot;
    moe_build(b, (moe_op){.kind = MOE_OP_ROPE,
                          .n = n_rot,
                          .each = n_head,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = x,
                          .y = x,
                          .u.rope = {.n_rot = n_rot,
                                     .interleaved = kind == MOE_ROPE_INTERLEAVED,
                                     .window = window}});
}

static void norm_q_and_k(moe_program_builder *b, moe_qk_norm_kind norm)
{
    const moe_heads *h = &moe_built_kind(b)->heads;
    bool unit = norm == MOE_QK_NORM_UNIT;
    if (norm == MOE_QK_NORM_NONE || (unit && moe_built_kind(b)->no_rope)) {
        return;
    }
    bool whole = norm == MOE_QK_NORM_FULL;
    uint32_t q_dim = whole ? h->n * h->k_dim : h->k_dim;
    uint32_t k_dim = whole ? h->n_kv * h->k_dim : h->k_dim;
    moe_build_norm(b, unit ? MOE_TENSOR_ONES : MOE_LAYER_ATTN_Q_NORM,
                   moe_all_of(MOE_VALUE_Q, q_dim), q_dim, whole ? 1 : h->n);
    moe_build_norm(b, unit ? MOE_TENSOR_ONES : MOE_LAYER_ATTN_K_NORM,
                   moe_all_of(MOE_VALUE_K, k_dim), k_dim, whole ? 1 : h->n_kv);
}

static void clip(moe_program_builder *b, moe_value value, uint32_t n)
{
    moe_build(b, (moe_op){.kind = MOE_OP_CLAMP,
                          .n = n,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(value, n),
                          .y = moe_all_of(value, n),
                          .factor = b->config->clip_qkv});
}

/* Whether the gates of attention's output are projected by a matrix of their own. */
static bool has_gates(const moe_program_builder *b, moe_attention_gate gate)
{
    return gate == MOE_ATTENTION_GATE_OWN ||
           (gate == MOE_ATTENTION_GATE_HEADS && moe_build_has(b, MOE_LAYER_ATTN_GATE));
}

/* Refuses sizes of heads that the form does not allow. */
static void check_heads(moe_program_builder *b, const moe_attention_form *form, bool has_values)
{
    const moe_heads *h = &moe_built_kind(b)->heads;
    bool joined = form->gate == MOE_ATTENTION_GATE_JOINED;
    if (b->status == MOE_OK && h->k_dim != h->v_dim && (joined || !has_values)) {
        b->status = moe_fail(
            b->err, MOE_ERR_FORMAT,
            "layer %u: key '%s.attention.value_length' (%u) is not key_length (%u), but %s",
            b->layer, b->config->architecture, h->v_dim, h->k_dim,
            joined ? "a head's gate is as wide as its query"
                   : "the layer has no attn_v, and takes its keys as values");
    }
}

/* Builds the projections: queries, keys, values and the gates of attention's output. */
static void project(moe_program_builder *b, const moe_attention_form *form)
{
    const moe_value from = form->from != MOE_VALUE_NONE ? form->from : MOE_VALUE_NORM;
    const moe_heads *h = &moe_built_kind(b)->heads;
    bool joined = form->gate == MOE_ATTENTION_GATE_JOINED;
    const uint32_t n_queries = h->n * h->k_dim * (joined ? 2 : 1), n_keys = h->n_kv * h->k_dim;
    const uint32_t n_values = h->n_kv * h->v_dim;
    for (int bias = 0; bias < 2 && b->claims != NULL && b->status == MOE_OK; bias++) {
        const uint64_t n_rows[3] = {n_queries, n_keys, n_values};
        b->status = moe_claim_joined_qkv(b->claims, b->layer, n_rows, bias);
    }
    bool has_values = !form->values_optional || moe_build_has(b, MOE_LAYER_ATTN_V);
    check_heads(b, form, has_values);
    moe_op_output outputs[MOE_MOST_OUTPUTS] = {
        moe_build_output(MOE_LAYER_ATTN_Q, 0, n_queries, joined ? MOE_VALUE_GATE : MOE_VALUE_Q),
        moe_build_output(MOE_LAYER_ATTN_K, 0, n_keys, MOE_VALUE_K),
    };
    bool by_head = form->gate == MOE_ATTENTION_GATE_HEADS;
    const uint32_t n_gates = by_head ? h->n : h->n * h->v_dim;
    uint32_t n = 2;
    outputs[0].bias = MOE_LAYER_ATTN_Q_BIAS;
    outputs[1].bias = MOE_LAYER_ATTN_K_BIAS;
    if (has_values) {
        outputs[n] = moe_build_output(MOE_LAYER_ATTN_V, 0, n_values, MOE_VALUE_V);
        outputs[n++].bias = MOE_LAYER_ATTN_V_BIAS;
    }
    if (has_gates(b, form->gate)) {
        outputs[n++] = moe_build_output(MOE_LAYER_ATTN_GATE, 0, n_gates, MOE_VALUE_GATE);
    }
    /* An EAGLE-3 head reads more than the stream. */
    uint32_t n_in = from == MOE_VALUE_NORM ? b->config->n_embd : 2 * b->config->n_embd;
    moe_build_linears(b, from, n_in, outputs, n);
    if (joined) {
        moe_build_copy(b, moe_all_of(MOE_VALUE_GATE, 2 * (size_t)h->k_dim),
                       moe_all_of(MOE_VALUE_Q, h->k_dim), h->k_dim, h->n);
    }
    if (!has_values) {
        moe_build_copy(b, moe_all_of(MOE_VALUE_K, n_keys), moe_all_of(MOE_VALUE_V, n_keys), n_keys,
                       1);
    }
}

static void size_choice(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    size_t *n_floats = b->program->n_floats;
    n_floats[MOE_VALUE_INDEX_CHOSEN] = (size_t)moe_choosing_groups(c) * moe_most_chosen(c);
    n_floats[MOE_VALUE_INDEX_BLOCK] = (size_t)MOE_INDEX_BLOCK * c->index_dim;
    n_floats[MOE_VALUE_INDEX_PRODUCTS] = (size_t)MOE_INDEX_ROWS * MOE_INDEX_BLOCK * c->index_heads;
}

/* An indexer with keys of its own, beside the heads. If it chooses blocks, keys are stored after
 * norm and rotary embedding. If it chooses pools, they are stored as they are; a pool's key is the
 * norm of their mean, with the rotary embedding of the pool's first position. */
static void choose_beside(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_heads *h = &moe_built_kind(b)->heads;
    const moe_operand key = moe_all_of(MOE_VALUE_INDEX_K, c->index_dim);
    const bool blocks = c->index_block > 0;
    moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_INDEX_K, c->index_dim, MOE_TENSOR_NONE,
                     MOE_VALUE_INDEX_K);
    if (blocks) {
        moe_build_norm(b, MOE_LAYER_INDEX_K_NORM, key, c->index_dim, 1);
        turn(b, key, 1, c->rope, false);
    }
    moe_build(b, (moe_op){.kind = MOE_OP_KV_STORE,
                          .n = c->index_dim,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = key,
                          .u.side = true});
    if (!blocks) {
        moe_build(b, (moe_op){.kind = MOE_OP_POOL,
                              .n = c->index_dim,
                              .tensor = MOE_LAYER_INDEX_K_NORM,
                              .bias = MOE_TENSOR_NONE,
                              .x = key});
        moe_build_claim(b, MOE_LAYER_INDEX_K_NORM, c->index_dim, 1, MOE_TENSOR_VECTOR);
    }
    const uint32_t first = b->program->n_ops;
    moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_INDEX_Q, c->index_heads * c->index_dim,
                     MOE_TENSOR_NONE, MOE_VALUE_INDEX_Q);
    moe_build_norm(b, MOE_LAYER_INDEX_Q_NORM, moe_all_of(MOE_VALUE_INDEX_Q, c->index_dim),
                   c->index_dim, c->index_heads);
    turn(b, moe_all_of(MOE_VALUE_INDEX_Q, c->index_dim), c->index_heads, c->rope, false);
    moe_build(b, (moe_op){.kind = MOE_OP_CHOOSE,
                          .n = c->index_dim,
                          .each = c->index_heads,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_INDEX_Q, c->index_dim)});
    size_choice(b);
    if (blocks) {
        b->program->n_floats[MOE_VALUE_GROUP_Q] = (size_t)h->n / c->index_heads * h->k_dim;
        b->program->n_floats[MOE_VALUE_GROUP_OUT] = (size_t)h->n / c->index_heads * h->v_dim;
    }
    for (uint32_t i = first; i < b->program->n_ops && b->status == MOE_OK; i++) {
        b->program->ops[i].if_choosing = true;
    }
}

static void attend(moe_program_builder *b, moe_value q, uint32_t k_dim, moe_sinks_kind sinks_kind)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    const moe_heads *h = &kind->heads;
    bool sinks = sinks_kind == MOE_SINKS_ALL ||
                 (sinks_kind == MOE_SINKS_SOME && moe_build_has(b, MOE_LAYER_ATTN_SINKS));
    moe_build(b, (moe_op){.kind = MOE_OP_ATTEND,
                          .n = k_dim,
                          .each = h->n,
                          .tensor = sinks ? MOE_LAYER_ATTN_SINKS : MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(q, k_dim),
                          .y = moe_all_of(MOE_VALUE_ATTENDED, h->v_dim),
                          .factor = kind->mixer == MOE_MIXER_LATENT ? kind->latent.scale
                                                                    : c->attention_scale,
                          .u.attend = {.n_kv = h->n_kv,
                                       .v_dim = h->v_dim,
                                       .window = kind->window,
                                       .chunk = kind->chunk,
                                       .cap = c->attention_cap,
                                       .scales_rows = kind->scales_queries,
                                       .indexer = kind->indexer}});
}

static void store(moe_program_builder *b, moe_operand keys, moe_operand values)
{
    moe_build(b, (moe_op){.kind = MOE_OP_KV_STORE,
                          .n = keys.stride,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = keys,
                          .z = values});
}

/* Gates `value`, the output of attention: n heads of v_dim elements. */
static void gate(moe_program_builder *b, const moe_attention_form *form, moe_value value,
                 uint32_t n, uint32_t v_dim)
{
    const moe_heads *h = &moe_built_kind(b)->heads;
    bool heads = form->gate == MOE_ATTENTION_GATE_HEADS;
    bool joined = form->gate == MOE_ATTENTION_GATE_JOINED;
    if (!joined && !has_gates(b, form->gate)) {
        return;
    }
    moe_operand gates = heads    ? moe_all_of(MOE_VALUE_GATE, 1)
                        : joined ? moe_part_of(MOE_VALUE_GATE, h->k_dim, 2 * (size_t)v_dim)
                                 : moe_all_of(MOE_VALUE_GATE, v_dim);
    moe_build(b,
              (moe_op){.kind = MOE_OP_GATE,
                       .n = v_dim,
                       .each = n,
                       .tensor = MOE_TENSOR_NONE,
                       .bias = MOE_TENSOR_NONE,
                       .x = moe_all_of(value, v_dim),
                       .y = moe_all_of(value, v_dim),
                       .z = gates,
                       .u.gate = {.kind = form->softplus ? MOE_GATING_SOFTPLUS : MOE_GATING_SIGMOID,
                                  .one = heads}});
}

static void project_output(moe_program_builder *b, moe_value from, uint32_t n, int bias)
{
    moe_build_linear(b, from, n, MOE_LAYER_ATTN_OUT, b->config->n_embd, bias, MOE_VALUE_BRANCH);
    moe_build_scale(b, MOE_VALUE_BRANCH, b->config->n_embd, b->config->attention_out_scale);
}

void moe_build_attention(moe_program_builder *b, const moe_attention_form *form)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    const moe_heads *h = &kind->heads;
    project(b, form);
    if (!form->norm_after_rope) {
        norm_q_and_k(b, form->qk_norm);
    }
    if (form->values_normed) {
        moe_build_norm(b, MOE_TENSOR_ONES, moe_all_of(MOE_VALUE_V, h->v_dim), h->v_dim, h->n_kv);
    }
    if (c->clip_qkv != 0.0f) {
        clip(b, MOE_VALUE_Q, h->n * h->k_dim);
        clip(b, MOE_VALUE_K, h->n_kv * h->k_dim);
        clip(b, MOE_VALUE_V, h->n_kv * h->v_dim);
    }
    if (!kind->no_rope) {
        turn(b, moe_all_of(MOE_VALUE_Q, h->k_dim), h->n, c->rope, kind->window_rope);
        turn(b, moe_all_of(MOE_VALUE_K, h->k_dim), h->n_kv, c->rope, kind->window_rope);
    }
    if (form->norm_after_rope) {
        norm_q_and_k(b, form->qk_norm);
    }
    store(b, moe_all_of(MOE_VALUE_K, (size_t)h->n_kv * h->k_dim),
          moe_all_of(MOE_VALUE_V, (size_t)h->n_kv * h->v_dim));
    if (kind->indexer == MOE_INDEXER_OWN) {
        choose_beside(b);
    }
    attend(b, MOE_VALUE_Q, h->k_dim, form->sinks);
    gate(b, form, MOE_VALUE_ATTENDED, h->n, h->v_dim);
    project_output(b, MOE_VALUE_ATTENDED, h->n * h->v_dim, MOE_LAYER_ATTN_OUT_BIAS);
}

/* ---- MLA ---- */

/* Projects q and the latent; with q_lora, q in two steps with a norm between them. */
static void project_latent(moe_program_builder *b, const moe_attention_form *form)
{
    const moe_model_config *c = b->config;
    const moe_latent *latent = &moe_built_kind(b)->latent;
    const uint32_t n = moe_built_kind(b)->heads.n, k_dim = latent->rank + c->n_rot;
    bool lora = c->q_lora_rank > 0;
    const uint32_t n_queries = n * (latent->nope + c->n_rot);
    bool gated = has_gates(b, form->gate);
    bool by_head = form->gate == MOE_ATTENTION_GATE_HEADS;
    const uint32_t n_gates = by_head ? n : n * latent->v_dim;
    const moe_op_output outputs[3] = {
        lora ? moe_build_output(MOE_LAYER_ATTN_Q_A, 0, c->q_lora_rank, MOE_VALUE_Q_A)
             : moe_build_output(MOE_LAYER_ATTN_Q, 0, n_queries, MOE_VALUE_Q),
        moe_build_output(MOE_LAYER_ATTN_KV_A, 0, k_dim, MOE_VALUE_K),
        moe_build_output(MOE_LAYER_ATTN_GATE, 0, n_gates, MOE_VALUE_GATE),
    };
    moe_build_linears(b, MOE_VALUE_NORM, c->n_embd, outputs, gated ? 3 : 2);
    if (lora) {
        moe_build_norm(b, MOE_LAYER_ATTN_Q_A_NORM, moe_all_of(MOE_VALUE_Q_A, c->q_lora_rank),
                       c->q_lora_rank, 1);
        moe_build_linear(b, MOE_VALUE_Q_A, c->q_lora_rank, MOE_LAYER_ATTN_Q_B, n_queries,
                         MOE_TENSOR_NONE, MOE_VALUE_Q);
    }
    moe_build_norm(b, MOE_LAYER_ATTN_KV_A_NORM, moe_all_of(MOE_VALUE_K, k_dim), latent->rank, 1);
    if (form->qk_norm == MOE_QK_NORM_TURNED) {
        moe_build_norm(b, MOE_LAYER_ATTN_K_NORM, moe_part_of(MOE_VALUE_K, latent->rank, k_dim),
                       c->n_rot, 1);
    }
}

static void turn_index(moe_program_builder *b, moe_value value, uint32_t n,
                       const moe_attention_form *form)
{
    const moe_model_config *c = b->config;
    uint32_t at = form->index_as_heads ? c->index_dim - c->n_rot : 0;
    if (c->n_rot == 0) {
        return;
    }
    turn(b, moe_part_of(value, at, c->index_dim), n, form->index_rope, false);
}

/* Adds the index key, which is stored behind a position's key. */
static void add_index_keys(moe_program_builder *b, const moe_attention_form *form, uint32_t stride)
{
    const moe_model_config *c = b->config;
    moe_operand key = moe_all_of(MOE_VALUE_INDEX_K, c->index_dim);
    moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_INDEX_K, c->index_dim, MOE_TENSOR_NONE,
                     MOE_VALUE_INDEX_K);
    moe_build_claim(b, MOE_LAYER_INDEX_K_NORM_BIAS, c->index_dim, 1, MOE_TENSOR_VECTOR);
    moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                          .n = c->index_dim,
                          .tensor = MOE_LAYER_INDEX_K_NORM,
                          .bias = MOE_LAYER_INDEX_K_NORM_BIAS,
                          .x = key,
                          .y = key,
                          .u.norm = {.mean = true,
                                     .eps = form->index_as_heads ? c->norm_eps : INDEX_NORM_EPS}});
    turn_index(b, MOE_VALUE_INDEX_K, 1, form);
    moe_build_copy(b, moe_all_of(MOE_VALUE_K, c->head_dim_k),
                   moe_all_of(MOE_VALUE_INDEXED_K, stride), c->head_dim_k, 1);
    moe_build_copy(b, key, moe_part_of(MOE_VALUE_INDEXED_K, c->head_dim_k, stride), c->index_dim,
                   1);
    if (c->index_pool > 1) {
        moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_INDEX_POOL_GATE, c->index_dim,
                         MOE_TENSOR_NONE, MOE_VALUE_INDEX_GATE);
        moe_build_copy(
            b, moe_all_of(MOE_VALUE_INDEX_GATE, c->index_dim),
            moe_part_of(MOE_VALUE_INDEXED_K, c->head_dim_k + (size_t)c->index_dim, stride),
            c->index_dim, 1);
    }
}

/* Stores the keys of pools; the keys and gates of the pass have been stored before. */
static void pool(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    moe_build(b, (moe_op){.kind = MOE_OP_POOL,
                          .n = c->index_dim,
                          .tensor = MOE_LAYER_INDEX_POOL_PLACE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_part_of(MOE_VALUE_INDEXED_K, c->head_dim_k,
                                           moe_built_kind(b)->heads.k_dim)});
    moe_build_claim(b, MOE_LAYER_INDEX_POOL_PLACE, c->index_dim, c->index_pool,
                    MOE_TENSOR_MATRIX_F32);
}

void moe_build_choose(moe_program_builder *b, const moe_attention_form *form)
{
    const moe_model_config *c = b->config;
    uint32_t first = b->program->n_ops;
    moe_build_linear(b, MOE_VALUE_Q_A, c->q_lora_rank, MOE_LAYER_INDEX_Q,
                     c->index_heads * c->index_dim, MOE_TENSOR_NONE, MOE_VALUE_INDEX_Q);
    turn_index(b, MOE_VALUE_INDEX_Q, c->index_heads, form);
    moe_build_linear(b, MOE_VALUE_NORM, c->n_embd, MOE_LAYER_INDEX_WEIGHTS, c->index_heads,
                     MOE_TENSOR_NONE, MOE_VALUE_INDEX_WEIGHTS);
    moe_build(b, (moe_op){.kind = MOE_OP_CHOOSE,
                          .n = c->index_dim,
                          .each = c->index_heads,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_INDEX_Q, c->index_dim),
                          .z = moe_all_of(MOE_VALUE_INDEX_WEIGHTS, c->index_heads)});
    size_choice(b);
    for (uint32_t i = first; i < b->program->n_ops && b->status == MOE_OK; i++) {
        b->program->ops[i].if_choosing = true;
    }
}

/* Older files have k_b and v_b of all heads in one tensor. If a file has this tensor and also the
 * two halves, the weights are there twice; the halves are used. */
static void claim_joined_halves(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    char name[48];
    if (b->claims != NULL && moe_build_has(b, MOE_LAYER_ATTN_K_B)) {
        snprintf(name, sizeof name, "blk.%u.%s", b->claims->first_layer + b->layer,
                 moe_tensor_name(c, MOE_LAYER_ATTN_KV_B));
        moe_claims_ignore(b->claims, name);
    } else if (moe_build_has(b, MOE_LAYER_ATTN_KV_B)) {
        moe_build_claim(b, MOE_LAYER_ATTN_KV_B, kind->latent.rank,
                        (uint64_t)kind->heads.n * (kind->latent.nope + kind->latent.v_dim),
                        MOE_TENSOR_MATRIX);
    }
}

void moe_build_latent_attention(moe_program_builder *b, const moe_attention_form *form)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    const moe_latent *latent = &kind->latent;
    const uint32_t n = kind->heads.n, q_dim = latent->nope + c->n_rot;
    const uint32_t k_dim = latent->rank + c->n_rot;
    bool indexes = kind->indexer == MOE_INDEXER_OWN;
    project_latent(b, form);
    claim_joined_halves(b);
    if (!kind->no_rope) {
        turn(b, moe_part_of(MOE_VALUE_Q, latent->nope, q_dim), n, c->rope, kind->window_rope);
        turn(b, moe_part_of(MOE_VALUE_K, latent->rank, k_dim), 1, c->rope, kind->window_rope);
    }
    moe_build(b, (moe_op){.kind = MOE_OP_HEAD_LINEAR,
                          .n = latent->nope,
                          .each = n,
                          .tensor = MOE_LAYER_ATTN_K_B,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_Q, q_dim),
                          .y = moe_all_of(MOE_VALUE_Q_LATENT, k_dim),
                          .u.n_out = latent->rank});
    if (c->n_rot > 0) {
        moe_build_copy(b, moe_part_of(MOE_VALUE_Q, latent->nope, q_dim),
                       moe_part_of(MOE_VALUE_Q_LATENT, latent->rank, k_dim), c->n_rot, n);
    }
    if (indexes) {
        add_index_keys(b, form, kind->heads.k_dim);
    }
    store(b, moe_all_of(indexes ? MOE_VALUE_INDEXED_K : MOE_VALUE_K, kind->heads.k_dim),
          moe_all_of(MOE_VALUE_NONE, 0));
    if (indexes && c->index_pool > 1) {
        pool(b);
    }
    if (indexes) {
        moe_build_choose(b, form);
    }
    attend(b, MOE_VALUE_Q_LATENT, k_dim, form->sinks);
    moe_build(b, (moe_op){.kind = MOE_OP_HEAD_LINEAR,
                          .n = latent->rank,
                          .each = n,
                          .tensor = MOE_LAYER_ATTN_V_B,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_ATTENDED, latent->rank),
                          .y = moe_all_of(MOE_VALUE_VALUES, latent->v_dim),
                          .u.n_out = latent->v_dim});
    gate(b, form, MOE_VALUE_VALUES, n, latent->v_dim);
    project_output(b, MOE_VALUE_VALUES, n * latent->v_dim, MOE_TENSOR_NONE);
}
