/* SPDX-License-Identifier: MIT */
/* A table of embeddings whose rows are chosen by a token together with those before it (the n-grams
 * of Qwen3.8-Flash-Next). The table is far larger than the rest of a model, and a token reads only
 * a few rows. Token ids alone determine which rows, so they are known before a pass begins. */
#ifndef MOE_MODEL_NGRAM_TABLE_H
#define MOE_MODEL_NGRAM_TABLE_H

#include <stdint.h>

#define MOE_MAX_NGRAM       8u
#define MOE_MAX_TABLE_HEADS 64u

/* A token reads one row for each head. The first heads_per_ngram heads choose it by a hash of the
 * last two tokens, the next ones by the last three, and so on up to ngram_size. Zeros: the model
 * has no such table. */
typedef struct moe_ngram_table {
    uint32_t layer; /* the rows are added to the residual streams before this layer */
    uint32_t ngram_size;
    uint32_t heads_per_ngram;
    uint32_t n_heads;
    uint32_t row_dim;
    uint32_t conv_kernel; /* of a convolution over tokens that are ngram_size apart */
    int32_t end_token;    /* ends a text; tokens before the text's beginning count as this token */
    int64_t multipliers[MOE_MAX_NGRAM];
    int64_t first_rows[MOE_MAX_TABLE_HEADS]; /* where each head's rows begin */
    int64_t head_rows[MOE_MAX_TABLE_HEADS];  /* how many rows each head has */
    int64_t n_rows;                          /* the table has at least this many */
} moe_ngram_table;

/* Floats that a token reads from the table. */
static inline uint32_t moe_ngram_floats(const moe_ngram_table *table)
{
    return table->n_heads * table->row_dim;
}

/* Floats of the convolution's state: its last inputs, each n floats wide. */
static inline uint64_t moe_ngram_tail_floats(const moe_ngram_table *table, uint32_t n)
{
    return table->ngram_size > 0 ? (uint64_t)(table->conv_kernel - 1) * table->ngram_size * n : 0;
}

/* Finds the rows that a token reads. last: [ngram_size], the token itself, the token before it, and
 * so on; end_token for places before the beginning of the text. rows: [n_heads] */
void moe_ngram_rows(const moe_ngram_table *table, const int32_t *last, uint64_t *rows);

#endif
