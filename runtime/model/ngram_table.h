/* SPDX-License-Identifier: MIT */
/* A table of embeddings that a token chooses together with those before it (Qwen3.8-Flash-Next's
 * n-grams). The table is far larger than the rest of a model, and a token reads a few rows of it.
 * Which ones follows from token ids alone, so they are known before a pass begins. */
#ifndef MOE_MODEL_NGRAM_TABLE_H
#define MOE_MODEL_NGRAM_TABLE_H

#include <stdint.h>

#define MOE_MAX_NGRAM       8u
#define MOE_MAX_TABLE_HEADS 64u

/* A token reads a row for each head: heads_per_ngram heads hash the last two tokens, as many the
 * last three, and so on up to ngram_size. Zeros: the model has no such table. */
typedef struct moe_ngram_table {
    uint32_t layer; /* before which the rows are added to the residual streams */
    uint32_t ngram_size;
    uint32_t heads_per_ngram;
    uint32_t n_heads;
    uint32_t row_dim;
    uint32_t conv_kernel; /* of the convolution over tokens that are ngram_size apart */
    int32_t end_token;    /* ends a text: the tokens before it are taken to be this one, too */
    int64_t multipliers[MOE_MAX_NGRAM];
    int64_t first_rows[MOE_MAX_TABLE_HEADS]; /* of each head, */
    int64_t head_rows[MOE_MAX_TABLE_HEADS];  /* ... and how many it has */
    int64_t n_rows;                          /* at least so many the table has */
} moe_ngram_table;

/* Floats that a token reads. */
static inline uint32_t moe_ngram_floats(const moe_ngram_table *table)
{
    return table->n_heads * table->row_dim;
}

/* Floats of the convolution's state: its inputs of the last tokens, each n wide. */
static inline uint64_t moe_ngram_tail_floats(const moe_ngram_table *table, uint32_t n)
{
    return table->ngram_size > 0 ? (uint64_t)(table->conv_kernel - 1) * table->ngram_size * n : 0;
}

/* Finds the rows that a token reads. last: [ngram_size], the token, the one before it, ..; where
 * the text begins later, end_token. rows: [n_heads] */
void moe_ngram_rows(const moe_ngram_table *table, const int32_t *last, uint64_t *rows);

#endif
