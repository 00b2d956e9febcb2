/* SPDX-License-Identifier: MIT */
/* Attention over one page on the sixteen lanes of lanes16_*.h, which is included first: the body of
 * one file per instruction set, included nowhere else.
 *
 * Queries are taken in groups of up to GROUP, whose scores fit on the stack. Two products dominate:
 *
 *   scores   a tile holds L16_TILE dot products in registers, n_q queries x n_positions; a chunk of
 *            a key is converted once and meets every query of the tile; the lanes of all dot
 *            products are folded together at the end.
 *   values   a tile holds n_q queries x n_blocks * 32 dimensions in registers and walks down the
 *            positions; a chunk of a value is converted once and meets every query of the tile.
 *
 * The tiles are inlined with constant shapes; only what is left over at the end of a row takes the
 * slow path. */
#ifndef MOE_X86_ATTEND_LANES_H
#define MOE_X86_ATTEND_LANES_H

#include "cpu/kernels/vector_ops.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define GROUP         16
#define BLOCK         32 /* elements: two chunks, and a block of Q8_0 */

typedef struct page_rows {
    const uint8_t *k[MOE_KV_PAGE];
    const uint8_t *v[MOE_KV_PAGE];
} page_rows;

/* Chunk `half` (0 or 1) of block b of a row. */
ALWAYS_INLINE l16 load_chunk(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t half)
{
    if (type == MOE_KV_F16)
        return l16_load_half(row + (size_t)b * 64 + half * 32);
    if (type == MOE_KV_F32)
        return l16_load((const void *)(row + (size_t)b * 128 + half * 64));
    const uint8_t *block = row + (size_t)b * MOE_KV_Q8_BYTES;
    return l16_mul(l16_set_half(block), l16_load_int8(block + 2 + half * 16));
}

/* The elements behind a row's last whole block, n < 32 of them, as two chunks padded with zeros. */
static void load_rest(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t n, l16 rest[2])
{
    uint8_t bytes[BLOCK * sizeof(float)] = {0};
    size_t size = type == MOE_KV_F16 ? sizeof(uint16_t) : sizeof(float);
    memcpy(bytes, row + (size_t)b * BLOCK * size, n * size);
    rest[0] = load_chunk(type, bytes, 0, 0);
    rest[1] = load_chunk(type, bytes, 0, 1);
}

static l16 add_rest(l16 acc, const float *q, const l16 rest[2], uint32_t n)
{
    float padded[BLOCK] = {0};
    memcpy(padded, q, n * sizeof(float));
    for (uint32_t half = 0; half < 2 && n > 0; half++) {
        uint32_t count = n < 16 ? n : 16;
        l16 sum = l16_fma(l16_load(padded + 16 * half), rest[half], acc);
        acc = count < 16 ? l16_part_of(sum, acc, count) : sum;
        n -= count;
    }
    return acc;
}

/* scores[h][p] = scale * (query h . key p) for n_q * n_positions = L16_TILE of them. */
ALWAYS_INLINE void score_tile(moe_kv_type type, const uint8_t *const *rows, uint32_t n_positions,
                              const float *q, uint32_t k_dim, uint32_t n_q, float scale,
                              float *scores)
{
    l16 acc[L16_TILE];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < L16_TILE; i++)
        acc[i] = l16_zero();
    for (uint32_t b = 0; b < k_dim / BLOCK; b++) {
#pragma GCC unroll 2
        for (uint32_t half = 0; half < 2; half++) {
#pragma GCC unroll 16
            for (uint32_t p = 0; p < n_positions; p++) {
                l16 key = load_chunk(type, rows[p], b, half);
#pragma GCC unroll 16
                for (uint32_t h = 0; h < n_q; h++) {
                    const float *query = q + (size_t)h * k_dim + b * BLOCK + half * 16;
                    acc[h * n_positions + p] =
                        l16_fma(l16_load(query), key, acc[h * n_positions + p]);
                }
            }
        }
    }
    uint32_t n_rest = k_dim % BLOCK;
    for (uint32_t p = 0; n_rest > 0 && p < n_positions; p++) {
        l16 rest[2];
        load_rest(type, rows[p], k_dim / BLOCK, n_rest, rest);
        for (uint32_t h = 0; h < n_q; h++)
            acc[h * n_positions + p] =
                add_rest(acc[h * n_positions + p], q + (size_t)h * k_dim + k_dim / BLOCK * BLOCK,
                         rest, n_rest);
    }
    float tile[L16_TILE];
    l16_reduce_tile(acc, scale, tile);
#pragma GCC unroll 16
    for (uint32_t h = 0; h < n_q; h++)
        memcpy(scores + h * MOE_KV_PAGE, tile + h * n_positions, n_positions * sizeof(float));
}

/* Positions j .. j + L16_TILE - 1 for n_q queries. */
ALWAYS_INLINE void score_positions(moe_kv_type type, const uint8_t *const *rows, const float *q,
                                   uint32_t k_dim, uint32_t n_q, float scale, float *scores)
{
    const uint32_t step = L16_TILE / n_q;
    for (uint32_t j = 0; j < L16_TILE; j += step)
        score_tile(type, rows + j, step, q, k_dim, n_q, scale, scores + j);
}

ALWAYS_INLINE void score_group(moe_kv_type type, const page_rows *rows, uint32_t n_valid,
                               const float *q, uint32_t k_dim, uint32_t n, float scale,
                               float *scores)
{
    for (uint32_t j = 0; j < n_valid; j += L16_TILE) {
        uint32_t h = 0;
        for (; h + 4 <= n; h += 4)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 4, scale,
                            scores + h * MOE_KV_PAGE + j);
        for (; h + 2 <= n; h += 2)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 2, scale,
                            scores + h * MOE_KV_PAGE + j);
        for (; h < n; h++)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 1, scale,
                            scores + h * MOE_KV_PAGE + j);
    }
}

/* Scores to weights exp(s - max), the positions behind n_valid to 0. */
static void weigh_scores(float *scores, uint32_t n_valid, float *max, float *sum)
{
    for (uint32_t j = n_valid; j < MOE_KV_PAGE; j++)
        scores[j] = -INFINITY;
    l16 greatest = l16_set(-INFINITY);
    for (uint32_t j = 0; j < MOE_KV_PAGE; j += 16)
        greatest = l16_max(l16_load(scores + j), greatest);
    *max = l16_reduce_max(greatest) + 0.0f;
    /* The padding adds +0 to sums that are never -0; if the maximum is -infinity it adds a NaN, but
     * then so did the first position. */
    l16 acc = l16_zero();
    for (uint32_t j = 0; j < MOE_KV_PAGE; j += 16) {
        l16 weights = l16_exp(l16_sub(l16_load(scores + j), l16_set(*max)));
        l16_store(scores + j, weights);
        acc = l16_add(acc, weights);
    }
    *sum = l16_reduce(acc);
}

/* Dimensions of blocks b .. b + n_blocks - 1 for n_q queries. */
ALWAYS_INLINE void value_tile(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                              const float *weights, uint32_t b, uint32_t n_blocks, uint32_t n_q,
                              float *out, uint32_t v_dim)
{
    l16 acc[2 * L16_TILE];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < n_q * n_blocks * 2; i++)
        acc[i] = l16_zero();
    for (uint32_t j = 0; j < n_valid; j++) {
        l16 value[8];
#pragma GCC unroll 8
        for (uint32_t c = 0; c < n_blocks * 2; c++)
            value[c] = load_chunk(type, rows[j], b + c / 2, c % 2);
#pragma GCC unroll 16
        for (uint32_t h = 0; h < n_q; h++) {
            l16 weight = l16_set(weights[h * MOE_KV_PAGE + j]);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < n_blocks * 2; c++)
                acc[h * n_blocks * 2 + c] = l16_fma(weight, value[c], acc[h * n_blocks * 2 + c]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t h = 0; h < n_q; h++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < n_blocks * 2; c++)
            l16_store(out + (size_t)h * v_dim + b * BLOCK + c * 16, acc[h * n_blocks * 2 + c]);
}

static void value_rest(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                       const float *weights, uint32_t v_dim, float *out)
{
    uint32_t b = v_dim / BLOCK, n = v_dim % BLOCK;
    float padded[BLOCK];
    l16 acc[2] = {l16_zero(), l16_zero()};
    for (uint32_t j = 0; j < n_valid; j++) {
        l16 rest[2];
        load_rest(type, rows[j], b, n, rest);
        acc[0] = l16_fma(l16_set(weights[j]), rest[0], acc[0]);
        acc[1] = l16_fma(l16_set(weights[j]), rest[1], acc[1]);
    }
    l16_store(padded, acc[0]);
    l16_store(padded + 16, acc[1]);
    memcpy(out + b * BLOCK, padded, n * sizeof(float));
}

ALWAYS_INLINE void value_queries(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                                 const float *weights, uint32_t n_q, uint32_t v_dim, float *out)
{
    const uint32_t fitting = L16_TILE / (2 * n_q);
    const uint32_t n_blocks = fitting < 4 ? fitting : 4;
    uint32_t b = 0;
    for (; b + n_blocks <= v_dim / BLOCK; b += n_blocks)
        value_tile(type, rows, n_valid, weights, b, n_blocks, n_q, out, v_dim);
    for (; b < v_dim / BLOCK; b++)
        value_tile(type, rows, n_valid, weights, b, 1, n_q, out, v_dim);
    for (uint32_t h = 0; v_dim % BLOCK > 0 && h < n_q; h++)
        value_rest(type, rows, n_valid, weights + h * MOE_KV_PAGE, v_dim, out + (size_t)h * v_dim);
}

ALWAYS_INLINE void value_group(moe_kv_type type, const page_rows *rows, uint32_t n_valid,
                               const float *weights, uint32_t n, uint32_t v_dim, float *out)
{
    uint32_t h = 0;
    for (; L16_TILE >= 16 && h + 8 <= n; h += 8)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 8, v_dim,
                      out + (size_t)h * v_dim);
    for (; L16_TILE >= 16 && h + 4 <= n; h += 4)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 4, v_dim,
                      out + (size_t)h * v_dim);
    for (; h + 2 <= n; h += 2)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 2, v_dim,
                      out + (size_t)h * v_dim);
    for (; h < n; h++)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 1, v_dim,
                      out + (size_t)h * v_dim);
}

ALWAYS_INLINE void attend_rows(moe_kv_type type, const moe_attend_args *args, const page_rows *rows)
{
    float scores[GROUP * MOE_KV_PAGE]; /* then weights */
    for (uint32_t first = 0; first < args->n_q; first += GROUP) {
        uint32_t n = args->n_q - first < GROUP ? args->n_q - first : GROUP;
        score_group(type, rows, args->n_valid, args->q + (size_t)first * args->k_dim, args->k_dim,
                    n, args->scale, scores);
        for (uint32_t h = 0; h < n; h++)
            weigh_scores(scores + h * MOE_KV_PAGE, args->n_valid, &args->max[first + h],
                         &args->sum[first + h]);
        value_group(type, rows, args->n_valid, scores, n, args->v_dim,
                    args->out + (size_t)first * args->v_dim);
    }
}

static void attend_page_lanes(const moe_attend_args *args)
{
    page_rows rows;
    /* A tile of scores may reach beyond n_valid: there the last position is repeated. */
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        uint32_t position = j < args->n_valid ? j : args->n_valid - 1;
        uint32_t slot = args->slots != NULL ? args->slots[position] : position;
        rows.k[j] = (const uint8_t *)args->k + slot * args->k_row_bytes;
        rows.v[j] = (const uint8_t *)args->v + slot * args->v_row_bytes;
    }
    if (args->type == MOE_KV_F16)
        attend_rows(MOE_KV_F16, args, &rows);
    else if (args->type == MOE_KV_F32)
        attend_rows(MOE_KV_F32, args, &rows);
    else
        attend_rows(MOE_KV_Q8_0, args, &rows);
}

#endif
