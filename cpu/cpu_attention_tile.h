/* SPDX-License-Identifier: MIT */
/* A tile of attention: one KV head, some rows, and some of the query heads that share the KV head.
 * Its queries are numbered row by row: query = row * n_heads + head. */
#ifndef MOE_CPU_ATTENTION_TILE_H
#define MOE_CPU_ATTENTION_TILE_H

#include "cpu/cpu_internal.h"

typedef struct moe_attention_tile {
    moe_cpu_device *cpu;
    const moe_attention *a;
    uint32_t first_row, n_rows;
    uint32_t kv_head;
    uint32_t first_head, n_heads; /* of all query heads */
    const float *q;               /* [n_rows][n_heads][k_dim] */
} moe_attention_tile;

/* For each query, the result of some positions, or the running state after all positions so far:
 * see attend_page() and attend_merge() of cpu/kernels/vector_ops.h. */
typedef struct moe_attention_part {
    float *max, *sum; /* [queries] */
    float *out;       /* [queries][v_dim]; NULL in a running state, whose outputs are in a->out */
} moe_attention_part;

/* Some of a tile's queries. */
typedef struct moe_query_range {
    uint32_t begin, end;
} moe_query_range;

/* Pages begin .. end - 1. moe_attention_pages() returns the pages with all positions that any row
 * of a->rows[first .. first + n - 1] sees. */
typedef struct moe_page_range {
    uint32_t begin, end;
} moe_page_range;

moe_page_range moe_attention_pages(const moe_attention *a, uint32_t first, uint32_t n);

/* Sets the state before any page: empty, or the heads' sinks. */
void moe_attention_begin(const moe_attention_tile *tile, moe_query_range queries,
                         moe_attention_part state);
/* Computes a page's part for the queries of all rows that see any of the page's positions. Leaves
 * other queries' parts as they are. */
void moe_attention_page(const moe_attention_tile *tile, uint32_t page, moe_attention_part part);
/* Folds a page's part into the state, for the queries of all rows that see any of the page's
 * positions. The pages must come in ascending order. */
void moe_attention_fold(const moe_attention_tile *tile, moe_query_range queries, uint32_t page,
                        moe_attention_part part, moe_attention_part state);
/* Divides by the sums, which completes the results in a->out. */
void moe_attention_finish(const moe_attention_tile *tile, moe_query_range queries,
                          moe_attention_part state);

#endif
