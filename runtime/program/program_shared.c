/* SPDX-License-Identifier: MIT */
/* Attention whose keys are its values, too (DeepSeek-V4):
 *
 *    q        = rope(unit norm(q_b . norm(q_a . x))),  k = rope(norm(kv . x))
 *    attended = rope_back(attention(q, compressed keys and the keys of a window))
 *    branch   = out_b . (out_a of each group of heads . attended of the group)
 *
 * where rope turns the last n_rot elements. A key's rotary part is in the attended value, too; so
 * that part of the value is turned back by the row's own position. Compressed keys, and which of
 * them a row sees, are in runtime/pass/compressed_keys.h. */
#include "runtime/program/program_builder.h"

static void turn(moe_program_builder *b, moe_value value, uint32_t width, uint32_t each, bool back)
{
    const moe_model_config *c = b->config;
    const moe_operand part = moe_part_of(value, width - c->n_rot, width);
    moe_build(b, (moe_op){.kind = MOE_OP_ROPE,
                          .n = c->n_rot,
                          .each = each,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = part,
                          .y = part,
                          .u.rope = {.n_rot = c->n_rot,
                                     .interleaved = c->rope == MOE_ROPE_INTERLEAVED,
                                     .window = moe_built_kind(b)->window_rope,
                                     .back = back}});
}

static void project(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    const uint32_t dim = c->head_dim_k, n = moe_key_series(kind->rate) * dim;
    const moe_op_output outputs[] = {
        moe_build_output(MOE_LAYER_ATTN_Q_A, 0, c->q_lora_rank, MOE_VALUE_Q_A),
        moe_build_output(MOE_LAYER_ATTN_KV_A, 0, dim, MOE_VALUE_K),
        moe_build_output(MOE_LAYER_COMPRESS_K, 0, n, MOE_VALUE_BLOCK_K),
        moe_build_output(MOE_LAYER_COMPRESS_GATE, 0, n, MOE_VALUE_BLOCK_GATE),
    };
    moe_build_linears(b, MOE_VALUE_NORM, c->n_embd, outputs, kind->rate > 0 ? 4 : 2);
    moe_build_norm(b, MOE_LAYER_ATTN_Q_A_NORM, moe_all_of(MOE_VALUE_Q_A, c->q_lora_rank),
                   c->q_lora_rank, 1);
    moe_build_linear(b, MOE_VALUE_Q_A, c->q_lora_rank, MOE_LAYER_ATTN_Q_B, c->n_head * dim,
                     MOE_TENSOR_NONE, MOE_VALUE_Q);
    moe_build_norm(b, MOE_TENSOR_ONES, moe_all_of(MOE_VALUE_Q, dim), dim, c->n_head);
    moe_build_norm(b, MOE_LAYER_ATTN_KV_A_NORM, moe_all_of(MOE_VALUE_K, dim), dim, 1);
    turn(b, MOE_VALUE_Q, dim, c->n_head, false);
    turn(b, MOE_VALUE_K, dim, 1, false);
}

/* Appends a value to what each position stores. */
static void append(moe_program_builder *b, moe_value value, uint32_t n, uint32_t *at)
{
    moe_build_copy(b, moe_all_of(value, n),
                   moe_part_of(MOE_VALUE_INDEXED_K, *at, moe_built_kind(b)->heads.k_dim), n, 1);
    *at += n;
}

/* Claims the tensors, besides the products', that block keys of this width need. */
static void claim_blocks(moe_program_builder *b, int place, int norm, uint32_t dim)
{
    const uint32_t rate = moe_built_kind(b)->rate;
    moe_build_claim(b, place, (uint64_t)moe_key_series(rate) * dim, rate, MOE_TENSOR_MATRIX_F32);
    moe_build_claim(b, norm, dim, 1, MOE_TENSOR_VECTOR);
}

/* Stores each position's key with what it adds to compressed keys; then stores the compressed keys
 * of blocks that end with a row of the pass. */
static void store_and_compress(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    const uint32_t dim = c->head_dim_k, series = moe_key_series(kind->rate);
    const bool indexes = kind->indexer == MOE_INDEXER_OWN;
    moe_value stored = MOE_VALUE_K;
    uint32_t at = 0;
    if (indexes) {
        const moe_op_output outputs[] = {moe_build_output(MOE_LAYER_INDEX_COMPRESS_K, 0,
                                                          series * c->index_dim, MOE_VALUE_INDEX_K),
                                         moe_build_output(MOE_LAYER_INDEX_COMPRESS_GATE, 0,
                                                          series * c->index_dim,
                                                          MOE_VALUE_INDEX_GATE)};
        moe_build_linears(b, MOE_VALUE_NORM, c->n_embd, outputs, 2);
    }
    if (kind->rate > 0) {
        stored = MOE_VALUE_INDEXED_K;
        append(b, MOE_VALUE_K, dim, &at);
        append(b, MOE_VALUE_BLOCK_K, series * dim, &at);
        append(b, MOE_VALUE_BLOCK_GATE, series * dim, &at);
    }
    if (indexes) {
        append(b, MOE_VALUE_INDEX_K, series * c->index_dim, &at);
        append(b, MOE_VALUE_INDEX_GATE, series * c->index_dim, &at);
    }
    moe_build(b, (moe_op){.kind = MOE_OP_KV_STORE,
                          .n = kind->heads.k_dim,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(stored, kind->heads.k_dim)});
    if (kind->rate == 0) {
        return;
    }
    moe_build(b, (moe_op){.kind = MOE_OP_COMPRESS,
                          .n = kind->heads.k_dim,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(stored, kind->heads.k_dim),
                          .u.attend = {.indexer = kind->indexer, .rate = kind->rate}});
    claim_blocks(b, MOE_LAYER_COMPRESS_PLACE, MOE_LAYER_COMPRESS_NORM, dim);
    if (indexes) {
        claim_blocks(b, MOE_LAYER_INDEX_COMPRESS_PLACE, MOE_LAYER_INDEX_COMPRESS_NORM,
                     c->index_dim);
    }
}

void moe_build_shared_attention(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_layer_kind *kind = moe_built_kind(b);
    const uint32_t dim = c->head_dim_k, n_group = c->n_head * dim / c->out_groups;
    project(b);
    store_and_compress(b);
    if (kind->indexer == MOE_INDEXER_OWN) {
        moe_build_choose(b, &(moe_attention_form){.index_as_heads = true, .index_rope = c->rope});
    }
    moe_build(b, (moe_op){.kind = MOE_OP_ATTEND,
                          .n = dim,
                          .each = c->n_head,
                          .tensor = MOE_LAYER_ATTN_SINKS,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_Q, dim),
                          .y = moe_all_of(MOE_VALUE_ATTENDED, dim),
                          .factor = c->attention_scale,
                          .u.attend = {.n_kv = 1,
                                       .v_dim = dim,
                                       .window = c->attention_window,
                                       .indexer = kind->indexer,
                                       .rate = kind->rate}});
    turn(b, MOE_VALUE_ATTENDED, dim, c->n_head, true);
    moe_build(b, (moe_op){.kind = MOE_OP_HEAD_LINEAR,
                          .n = n_group,
                          .each = c->out_groups,
                          .tensor = MOE_LAYER_ATTN_OUT_A,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_ATTENDED, n_group),
                          .y = moe_all_of(MOE_VALUE_OUT_LOW, c->out_rank),
                          .u.n_out = c->out_rank});
    moe_build_linear(b, MOE_VALUE_OUT_LOW, c->out_groups * c->out_rank, MOE_LAYER_ATTN_OUT_B,
                     c->n_embd, MOE_TENSOR_NONE, MOE_VALUE_BRANCH);
}
