/* SPDX-License-Identifier: MIT */
/* Several residual streams whose elements have gates, and what a table of n-grams adds to them
 * (Qwen3.8-Flash-Next). With n streams S of d elements, and u their norms, each with a weight of
 * its own:
 *
 *    a branch reads   the mean of sigmoid(up . silu(down . u / n)) * u
 *    and is added     S[i] += 2 sigmoid(inject . u / n)[i] * branch
 *
 * With e the rows that a token reads of the table; this stands before one layer:
 *
 *    g[i] = key[i] . query[i] / sqrt(d),  key = norms of K e,  query = norms of S
 *    v[i] = sigmoid(sign(g[i]) sqrt|g[i]|) * V e
 *    S   += v + silu(convolution of v's norms, over tokens that are ngram_size apart)
 *
 * Also streams of earlier layers, to which a branch attends (Kimi-K3). Layers add to S[0]. Every
 * few layers S[0] is kept as one of S[1..], and begins anew with the output of a mixer. */
#include "runtime/program/program_builder.h"

void moe_build_streams_norm(moe_program_builder *b, int tensor, moe_value from, moe_value to)
{
    const uint32_t n = b->config->n_embd, n_all = n * b->config->n_streams;
    moe_build_claim(b, tensor, n_all, 1, MOE_TENSOR_VECTOR);
    for (uint32_t at = 0; at < n_all; at += n) {
        moe_build(b, (moe_op){.kind = MOE_OP_NORM,
                              .n = n,
                              .tensor = tensor,
                              .bias = MOE_TENSOR_NONE,
                              .x = moe_part_of(from, at, n_all),
                              .y = moe_part_of(to, at, n_all),
                              .u.norm = {.eps = b->config->norm_eps, .weight_at = at}});
    }
}

/* The first of the three tensors with which a branch reads streams. */
static int first_tensor(int tensor)
{
    return tensor == MOE_TENSOR_STREAMS       ? MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_NORM
           : tensor == MOE_LAYER_ATTN_STREAMS ? MOE_LAYER_ATTN_STREAMS_NORM
                                              : MOE_LAYER_FFN_STREAMS_NORM;
}

void moe_build_gated_read(moe_program_builder *b, moe_value x, int tensor, moe_value mix,
                          moe_value to)
{
    const moe_model_config *c = b->config;
    const uint32_t n = c->n_embd, n_all = n * c->n_streams, rank = c->stream_rank;
    const bool writes = tensor != MOE_TENSOR_STREAMS && mix == MOE_VALUE_STREAM_MIX;
    const int norm = first_tensor(tensor);
    const moe_op_output outputs[2] = {
        moe_build_output(norm + 1, 0, rank, MOE_VALUE_STREAM_LOW),
        moe_build_output(norm + 3, 0, c->n_streams, mix),
    };
    const moe_operand low = moe_all_of(MOE_VALUE_STREAM_LOW, rank);
    moe_build_streams_norm(b, norm, x, MOE_VALUE_STREAM_NORM);
    moe_build_linears(b, MOE_VALUE_STREAM_NORM, n_all, outputs, writes ? 2 : 1);
    moe_build_scale(b, MOE_VALUE_STREAM_LOW, rank, 1.0f / (float)c->n_streams);
    moe_build(b, (moe_op){.kind = MOE_OP_GATE,
                          .n = rank,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = low,
                          .y = low,
                          .z = low,
                          .u.gate.kind = MOE_GATING_SIGMOID});
    moe_build_linear(b, MOE_VALUE_STREAM_LOW, rank, norm + 2, n_all, MOE_TENSOR_NONE,
                     MOE_VALUE_STREAM_GATES);
    moe_build(b, (moe_op){.kind = MOE_OP_READ,
                          .n = n,
                          .each = c->n_streams,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_STREAM_NORM, n),
                          .y = moe_all_of(to, n),
                          .z = moe_all_of(MOE_VALUE_STREAM_GATES, n),
                          .u.streams = {.weights = writes ? moe_all_of(mix, c->n_streams)
                                                          : moe_all_of(MOE_VALUE_NONE, 0),
                                        .magnitude = c->stream_magnitude}});
}

/* Convolves what is added to the streams; the result is added to it. */
static void convolve(moe_program_builder *b, uint32_t n_all)
{
    const moe_ngram_table *t = &b->config->ngrams;
    moe_build_streams_norm(b, MOE_LAYER_NGRAM_CONV_NORM, MOE_VALUE_NGRAM_KEYS,
                           MOE_VALUE_NGRAM_MIXED);
    moe_build(b, (moe_op){.kind = MOE_OP_STATES,
                          .n = n_all,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_NGRAM_MIXED, n_all),
                          .y = moe_all_of(MOE_VALUE_NGRAM_OUT, n_all),
                          .u.states = {.n_step = 1, .of_ngrams = true}});
    moe_build(b, (moe_op){.kind = MOE_OP_NGRAM_CONVOLVE,
                          .n = n_all,
                          .tensor = MOE_LAYER_NGRAM_CONV,
                          .bias = MOE_TENSOR_NONE});
    moe_build_claim(b, MOE_LAYER_NGRAM_CONV, t->conv_kernel, n_all, MOE_TENSOR_MATRIX_F32);
}

void moe_build_ngrams(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_ngram_table *t = &c->ngrams;
    const uint32_t n = c->n_embd, n_all = n * c->n_streams, n_read = moe_ngram_floats(t);
    if (!moe_built_kind(b)->keeps_tokens) {
        return;
    }
    if (b->status == MOE_OK && b->claims != NULL) {
        b->status = moe_claim_ngrams(b->claims);
    }
    const moe_op_output outputs[2] = {
        moe_build_output(MOE_LAYER_NGRAM_KEY, 0, n_all, MOE_VALUE_NGRAM_KEYS),
        moe_build_output(MOE_LAYER_NGRAM_VALUE, 0, n, MOE_VALUE_NGRAM_VALUES),
    };
    moe_build(b, (moe_op){.kind = MOE_OP_LOOK_UP,
                          .n = n_read,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .y = moe_all_of(MOE_VALUE_NGRAM_ROWS, n_read)});
    moe_build_linears(b, MOE_VALUE_NGRAM_ROWS, n_read, outputs, 2);
    moe_build_streams_norm(b, MOE_LAYER_NGRAM_KEY_NORM, MOE_VALUE_NGRAM_KEYS, MOE_VALUE_NGRAM_KEYS);
    moe_build_streams_norm(b, MOE_LAYER_NGRAM_QUERY_NORM, MOE_VALUE_X, MOE_VALUE_STREAM_NORM);
    moe_build(b, (moe_op){.kind = MOE_OP_MATCH,
                          .n = n,
                          .each = c->n_streams,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(MOE_VALUE_NGRAM_KEYS, n),
                          .y = moe_all_of(MOE_VALUE_NGRAM_KEYS, n),
                          .z = moe_all_of(MOE_VALUE_STREAM_NORM, n),
                          .u.match = moe_all_of(MOE_VALUE_NGRAM_VALUES, n)});
    convolve(b, n_all);
    moe_build_add(b, MOE_VALUE_NGRAM_OUT, MOE_VALUE_NGRAM_KEYS, MOE_VALUE_NGRAM_OUT, n_all);
    moe_build_add(b, MOE_VALUE_X, MOE_VALUE_NGRAM_OUT, MOE_VALUE_X, n_all);
}

/* The score of a stream is norm(stream) . score. */
void moe_build_recall(moe_program_builder *b, moe_value x, int tensor, moe_value mix, moe_value to)
{
    const moe_model_config *c = b->config;
    const size_t n_all = (size_t)c->n_streams * c->n_embd;
    const bool network = tensor == MOE_LAYER_FFN_STREAMS;
    const int score = tensor == MOE_TENSOR_STREAMS ? MOE_TENSOR_STREAMS + MOE_STREAMS_HEAD_RECALL
                      : network                    ? MOE_LAYER_FFN_RECALL
                                                   : MOE_LAYER_ATTN_RECALL;
    /* A mixer may have begun the stream anew; then the layer's network finds one stream more than
     * the mixer did. A guess ahead of the mixer does not find it. */
    const bool behind = network && mix == MOE_VALUE_STREAM_MIX;
    moe_build(b, (moe_op){.kind = MOE_OP_READ,
                          .n = c->n_embd,
                          .tensor = score,
                          .bias = MOE_TENSOR_NONE,
                          .x = moe_all_of(x, n_all),
                          .y = moe_all_of(to, c->n_embd),
                          .u.streams = {.weights = moe_all_of(mix, c->n_streams),
                                        .eps = c->norm_eps,
                                        .n_recalled = moe_streams_before(c, b->layer + behind)}});
}

void moe_build_recalled(moe_program_builder *b)
{
    const moe_model_config *c = b->config;
    const moe_operand streams = moe_all_of(MOE_VALUE_X, (size_t)c->n_streams * c->n_embd);
    const bool of_mixer = b->program->layers[b->layer].mixed == 0; /* the mixer has not ended yet */
    const bool begins = of_mixer && b->layer % c->stream_block == 0;
    moe_build(b, (moe_op){.kind = MOE_OP_WRITE,
                          .n = c->n_embd,
                          .tensor = MOE_TENSOR_NONE,
                          .bias = MOE_TENSOR_NONE,
                          .x = streams,
                          .y = streams,
                          .z = moe_all_of(MOE_VALUE_BRANCH, c->n_embd),
                          .u.streams.begins = begins ? moe_streams_before(c, b->layer) : 0});
}
