/* SPDX-License-Identifier: MIT */
/* Attention over one page on the sixteen lanes of lanes16_*.h, which is included first. This is the
 * body of one file for each instruction set; no other file includes it.
 *
 * Queries are taken in groups of up to GROUP, whose scores fit on the stack. Two products dominate:
 *
 *  scores   A tile is L16_TILE dot products, n_q queries x n_positions, with one register each.
 *           A piece of a key is converted once and used by every query of the tile. If the lanes
 *           take two registers, the tile is walked once for each half of the lanes, which leaves
 *           registers for twice as many products. At the end all lanes are folded together.
 *  values   A tile is n_q queries x n_chunks * 16 dimensions in registers, and walks down the
 *           positions. A piece of a value is converted once and used by every query of the tile.
 *
 * The tiles are inlined with constant shapes. Only the elements behind a row's last whole block
 * take the slow path. */
#ifndef MOE_X86_ATTEND_LANES_H
#define MOE_X86_ATTEND_LANES_H

#include "cpu/kernels/vector_ops.h"
#include "cpu/x86/always_inline.h"
#include "cpu/x86/tanh_lanes.h"

#define GROUP 16
/* The loop's bounds are constant once inlined; unrolled, its accumulators are registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define BLOCK 32 /* elements: two chunks of 16, and a block of Q8_0 */

typedef struct page_rows {
    const uint8_t *k[MOE_KV_PAGE];
    const uint8_t *v[MOE_KV_PAGE];
} page_rows;

/* Chunk `half` (0 or 1) of block b of a row. */
MOE_INLINE l16 load_chunk(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t half)
{
    if (type == MOE_KV_F16)
        return l16_load_half(row + (size_t)b * 64 + half * 32);
    if (type == MOE_KV_F32)
        return l16_load((const void *)(row + (size_t)b * 128 + half * 64));
    if (type == MOE_KV_F8)
        return l16_load_f8(row + (size_t)b * BLOCK + half * 16);
    if (type == MOE_KV_Q4_0) {
        const uint8_t *q4 = row + (size_t)b * MOE_KV_Q4_BYTES;
        return l16_mul(l16_set_half(q4), l16_load_q4(q4 + 2, half));
    }
    const uint8_t *block = row + (size_t)b * MOE_KV_Q8_BYTES;
    return l16_mul(l16_set_half(block), l16_load_int8(block + 2 + half * 16));
}

/* Loads the elements behind a row's last whole block, n < 32 of them, as two chunks padded with
 * zeros. Q8_0 and Q4_0 have no such elements. */
static void load_rest(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t n, l16 rest[2])
{
    uint8_t bytes[BLOCK * sizeof(float)] = {0};
    size_t size = moe_kv_row_bytes(type, 1);
    memcpy(bytes, row + (size_t)b * BLOCK * size, n * size);
    for (uint32_t half = 0; half < 2; half++)
        rest[half] = load_chunk(type, bytes, 0, half);
}

/* Lanes behind the row's end add 0 * 0 here. This could turn a -0 into +0, but no result depends on
 * the sign of a zero score. */
static l16 add_rest(l16 acc, const float *q, const l16 rest[2], uint32_t n)
{
    float padded[BLOCK] = {0};
    memcpy(padded, q, n * sizeof(float));
    return l16_fma(l16_load(padded + 16), rest[1], l16_fma(l16_load(padded), rest[0], acc));
}

/* Adds the rest of every row of a tile to its lanes. */
static void add_rests(moe_kv_type type, const uint8_t *const *rows, uint32_t n_positions,
                      const float *q, uint32_t k_dim, uint32_t n_q, l16 acc[L16_TILE])
{
    uint32_t b = k_dim / BLOCK, n = k_dim % BLOCK;
    for (uint32_t p = 0; p < n_positions; p++) {
        l16 rest[2];
        load_rest(type, rows[p], b, n, rest);
        for (uint32_t h = 0; h < n_q; h++) {
            l16 *lanes = &acc[h * n_positions + p];
            *lanes = add_rest(*lanes, q + (size_t)h * k_dim + b * BLOCK, rest, n);
        }
    }
}

/* scores[h][p] = scale * (query h . key p) for n_q * n_positions = L16_TILE of them. */
MOE_INLINE void score_tile(moe_kv_type type, const uint8_t *const *rows, uint32_t n_positions,
                           const float *q, uint32_t k_dim, uint32_t n_q, float scale, float *scores)
{
    l16 acc[L16_TILE];
    UNROLL
    for (uint32_t i = 0; i < L16_TILE; i++)
        acc[i] = l16_zero();
    for (uint32_t b = 0; b < k_dim / BLOCK; b++) {
        UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            const float *query = q + b * BLOCK + half * 16;
            UNROLL
            for (uint32_t p = 0; p < n_positions; p++) {
                l16 key = load_chunk(type, rows[p], b, half);
                UNROLL
                for (uint32_t h = 0; h < n_q; h++)
                    acc[h * n_positions + p] =
                        l16_fma(l16_load(query + (size_t)h * k_dim), key, acc[h * n_positions + p]);
            }
        }
    }
    if (k_dim % BLOCK > 0) {
        l16 with_rest[L16_TILE]; /* a copy, so that acc itself has no address and stays in registers
                                  */
        UNROLL
        for (uint32_t i = 0; i < L16_TILE; i++)
            with_rest[i] = acc[i];
        add_rests(type, rows, n_positions, q, k_dim, n_q, with_rest);
        UNROLL
        for (uint32_t i = 0; i < L16_TILE; i++)
            acc[i] = with_rest[i];
    }
    float tile[L16_TILE];
    l16_reduce_tile(acc, scale, tile);
    UNROLL
    for (uint32_t h = 0; h < n_q; h++)
        memcpy(scores + h * MOE_KV_PAGE, tile + h * n_positions, n_positions * sizeof(float));
}

MOE_INLINE void prefetch_rows(const uint8_t *const *rows, uint32_t n, size_t row_bytes)
{
    for (uint32_t p = 0; p < n; p++)
        for (size_t at = 0; at < row_bytes; at += 64)
            _mm_prefetch((const char *)rows[p] + at, _MM_HINT_T0);
}

/* Positions j .. j + L16_TILE - 1 for n_q queries. */
MOE_INLINE void score_positions(moe_kv_type type, const uint8_t *const *rows, const float *q,
                                uint32_t k_dim, uint32_t n_q, float scale, float *scores,
                                const uint8_t *const *v_rows, size_t v_bytes)
{
    const uint32_t step = L16_TILE / n_q;
    for (uint32_t j = 0; j < L16_TILE; j += step) {
        prefetch_rows(v_rows + j, step, v_bytes);
        score_tile(type, rows + j, step, q, k_dim, n_q, scale, scores + j);
    }
}

/* v_bytes > 0: the first queries' tiles prefetch this many bytes of the positions' values. Tiles of
 * four and more queries walk down long values in columns, which the processor's own prefetcher does
 * not follow. Rows that it does follow are faster without this (measured). */
MOE_INLINE void score_group(moe_kv_type type, const page_rows *rows, uint32_t n_valid,
                            size_t v_bytes, const float *q, uint32_t k_dim, uint32_t n, float scale,
                            float *scores)
{
    for (uint32_t j = 0; j < n_valid; j += L16_TILE) {
        uint32_t h = 0;
        for (; h + 4 <= n; h += 4)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 4, scale,
                            scores + h * MOE_KV_PAGE + j, rows->v + j, h == 0 ? v_bytes : 0);
        for (; h + 2 <= n; h += 2)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 2, scale,
                            scores + h * MOE_KV_PAGE + j, rows->v + j, 0);
        for (; h < n; h++)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 1, scale,
                            scores + h * MOE_KV_PAGE + j, rows->v + j, 0);
    }
}

static void cap_scores(float *scores, uint32_t n_valid, float cap)
{
    for (uint32_t j = n_valid; j % 16 != 0; j++)
        scores[j] = 0.0f;
    for (uint32_t j = 0; j < n_valid; j += 16)
        l16_store(scores + j, l16_soft_cap(l16_set(cap), l16_load(scores + j)));
}

/* Turns scores into weights exp(s - max); positions from n_valid on get 0. */
static void weigh_scores(float *scores, uint32_t n_valid, float *max, float *sum)
{
    for (uint32_t j = n_valid; j < MOE_KV_PAGE; j++)
        scores[j] = -INFINITY;
    l16 greatest = l16_set(-INFINITY);
    for (uint32_t j = 0; j < MOE_KV_PAGE; j += 16)
        greatest = l16_max(l16_load(scores + j), greatest);
    *max = l16_reduce_max(greatest) + 0.0f;
    /* The padding adds +0 to sums that are never -0. If the maximum is -infinity it adds a NaN, but
     * then the first position has already done so. */
    l16 acc = l16_zero();
    for (uint32_t j = 0; j < MOE_KV_PAGE; j += 16) {
        l16 weights = l16_exp(l16_sub(l16_load(scores + j), l16_set(*max)));
        l16_store(scores + j, weights);
        acc = l16_add(acc, weights);
    }
    *sum = l16_reduce(acc);
}

/* n_chunks chunks from chunk `half` of block b on, for n_q queries. */
MOE_INLINE void value_tile(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                           const float *weights, uint32_t b, uint32_t half, uint32_t n_chunks,
                           uint32_t n_q, float *out, uint32_t v_dim)
{
    l16 acc[L16_TILE];
    UNROLL
    for (uint32_t i = 0; i < n_q * n_chunks; i++)
        acc[i] = l16_zero();
    for (uint32_t j = 0; j < n_valid; j++) {
        l16 value[8];
        UNROLL
        for (uint32_t c = 0; c < n_chunks; c++)
            value[c] = load_chunk(type, rows[j], b + (half + c) / 2, (half + c) % 2);
        UNROLL
        for (uint32_t h = 0; h < n_q; h++) {
            l16 weight = l16_set(weights[h * MOE_KV_PAGE + j]);
            UNROLL
            for (uint32_t c = 0; c < n_chunks; c++)
                acc[h * n_chunks + c] = l16_fma(weight, value[c], acc[h * n_chunks + c]);
        }
    }
    out += b * BLOCK + half * 16;
    UNROLL
    for (uint32_t h = 0; h < n_q; h++)
        UNROLL
    for (uint32_t c = 0; c < n_chunks; c++)
        l16_store(out + (size_t)h * v_dim + c * 16, acc[h * n_chunks + c]);
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

MOE_INLINE void value_queries(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                              const float *weights, uint32_t n_q, uint32_t v_dim, float *out)
{
    const uint32_t fitting = L16_TILE / n_q;
    const uint32_t all = v_dim / BLOCK * 2;
    uint32_t c = 0;
    for (; fitting >= 8 && c + 8 <= all; c += 8)
        value_tile(type, rows, n_valid, weights, c / 2, 0, 8, n_q, out, v_dim);
    for (; fitting >= 4 && c + 4 <= all; c += 4)
        value_tile(type, rows, n_valid, weights, c / 2, 0, 4, n_q, out, v_dim);
    for (; fitting >= 2 && c < all; c += 2)
        value_tile(type, rows, n_valid, weights, c / 2, 0, 2, n_q, out, v_dim);
    for (; c < all; c++)
        value_tile(type, rows, n_valid, weights, c / 2, c % 2, 1, n_q, out, v_dim);
    for (uint32_t h = 0; v_dim % BLOCK > 0 && h < n_q; h++)
        value_rest(type, rows, n_valid, weights + h * MOE_KV_PAGE, v_dim, out + (size_t)h * v_dim);
}

MOE_INLINE void value_group(moe_kv_type type, const page_rows *rows, uint32_t n_valid,
                            const float *weights, uint32_t n, uint32_t v_dim, float *out)
{
    uint32_t h = 0;
    for (; L16_TILE >= 16 && h + 8 <= n; h += 8)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 8, v_dim,
                      out + (size_t)h * v_dim);
    for (; h + 4 <= n; h += 4)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 4, v_dim,
                      out + (size_t)h * v_dim);
    for (; h + 2 <= n; h += 2)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 2, v_dim,
                      out + (size_t)h * v_dim);
    for (; h < n; h++)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 1, v_dim,
                      out + (size_t)h * v_dim);
}

MOE_INLINE void attend_rows(moe_kv_type type, const moe_attend_args *args, const page_rows *rows)
{
    float scores[GROUP * MOE_KV_PAGE]; /* then weights */
    for (uint32_t first = 0; first < args->n_q; first += GROUP) {
        uint32_t n = args->n_q - first < GROUP ? args->n_q - first : GROUP;
        size_t v_bytes = moe_kv_row_bytes(type, args->v_dim);
        if (first > 0 || n < 4 || v_bytes < 256 || rows->v[0] == rows->k[0])
            v_bytes = 0;
        score_group(type, rows, args->n_valid, v_bytes, args->q + (size_t)first * args->k_dim,
                    args->k_dim, n, args->scale, scores);
        for (uint32_t h = 0; args->cap != 0.0f && h < n; h++)
            cap_scores(scores + h * MOE_KV_PAGE, args->n_valid, args->cap);
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
    /* A tile of scores may extend beyond n_valid; the last position is repeated there. */
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        uint32_t position = j < args->n_valid ? j : args->n_valid - 1;
        if (args->k_rows != NULL) {
            rows.k[j] = args->k_rows[position];
            rows.v[j] = args->v_rows[position];
        } else {
            rows.k[j] = (const uint8_t *)args->k + position * args->k_row_bytes;
            rows.v[j] = (const uint8_t *)args->v + position * args->v_row_bytes;
        }
    }
    if (args->type == MOE_KV_F16)
        attend_rows(MOE_KV_F16, args, &rows);
    else if (args->type == MOE_KV_F32)
        attend_rows(MOE_KV_F32, args, &rows);
    else if (args->type == MOE_KV_Q4_0)
        attend_rows(MOE_KV_Q4_0, args, &rows);
    else if (args->type == MOE_KV_F8)
        attend_rows(MOE_KV_F8, args, &rows);
    else
        attend_rows(MOE_KV_Q8_0, args, &rows);
}

#endif
