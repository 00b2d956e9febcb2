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
#include "cpu/kernels/vector_reference.h"
#include "cpu/x86/always_inline.h"
#include "cpu/x86/tanh_lanes.h"

#define GROUP 16
/* For loops whose bounds are constant once inlined: unrolled, their accumulators are registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#include "cpu/x86/attend_load_lanes.h"

/* Rows to prefetch into the caches; they lie one behind the other. row_bytes = 0: none. */
typedef struct rows_ahead {
    const uint8_t *from;
    size_t row_bytes;
} rows_ahead;

static inline rows_ahead only_if(bool wanted, rows_ahead rows)
{
    return (rows_ahead){rows.from, wanted ? rows.row_bytes : 0};
}

typedef struct page_rows {
    const uint8_t *k[MOE_KV_PAGE];
    const uint8_t *v[MOE_KV_PAGE];
} page_rows;

MOE_INLINE l16 times_f8_unit(bool wanted, l16 x)
{
    return wanted ? l16_mul(x, l16_set(F8_UNIT)) : x;
}

/* Adds the elements of a row behind its last whole block. Lanes behind the row's end add 0 * 0.
 * This could turn a -0 into +0, but no result depends on the sign of a zero score. */
static l16 add_rest(l16 acc, const float *q, const l16 rest[2], uint32_t n)
{
    l16 low = l16_load_part(q, n < 16 ? n : 16);
    l16 high = n > 16 ? l16_load_part(q + 16, n - 16) : l16_zero();
    return l16_fma(high, rest[1], l16_fma(low, rest[0], acc));
}

/* Adds the rest of every row of a tile to its lanes. */
static void add_rests(moe_kv_type type, const uint8_t *const *rows, uint32_t n_positions,
                      const float *q, uint32_t k_dim, uint32_t n_q, l16 acc[L16_TILE])
{
    uint32_t b = k_dim / BLOCK, n = k_dim % BLOCK;
    for (uint32_t p = 0; p < n_positions; p++) {
        l16 rest[2];
        load_rest(type, rows[p], b, n, rest);
        for (uint32_t half = 0; type == MOE_KV_F8 && half < 2; half++)
            rest[half] = times_f8_unit(true, rest[half]);
        for (uint32_t h = 0; h < n_q; h++) {
            l16 *lanes = &acc[h * n_positions + p];
            *lanes = add_rest(*lanes, q + (size_t)h * k_dim + b * BLOCK, rest, n);
        }
    }
}

/* Whether F8_UNIT multiplies a tile's queries and not its keys. It multiplies whichever are fewer.
 */
MOE_INLINE bool scales_queries(moe_kv_type type, uint32_t n_q, uint32_t n_positions)
{
    return type == MOE_KV_F8 && n_q < n_positions;
}

/* scores[h][p] = scale * (query h . key p), for n_q queries and n_positions keys. n_q * n_positions
 * = L16_TILE. */
MOE_INLINE void score_tile(moe_kv_type type, const uint8_t *const *rows, uint32_t n_positions,
                           const float *q, uint32_t k_dim, uint32_t n_q, float scale, float *scores)
{
    const bool on_queries = scales_queries(type, n_q, n_positions);
    l16 acc[L16_TILE];
    UNROLL
    for (uint32_t i = 0; i < L16_TILE; i++)
        acc[i] = l16_zero();
    for (uint32_t first = 0; first < k_dim / BLOCK; first += SCALES) {
        uint32_t n = k_dim / BLOCK - first < SCALES ? k_dim / BLOCK - first : SCALES;
        float scales[L16_TILE][SCALES];
        for (uint32_t p = 0; has_scales(type) && n_positions > 1 && p < n_positions; p++)
            load_scales(type, rows[p], first, n, scales[p]);
        for (uint32_t b = 0; b < n; b++) {
            const float *query = q + (first + b) * BLOCK;
            UNROLL
            for (uint32_t p = 0; p < n_positions; p++) {
                l16 key[2];
                load_block(type, rows[p], first + b, n_positions > 1 ? &scales[p][b] : NULL, key);
                key[0] = times_f8_unit(type == MOE_KV_F8 && !on_queries, key[0]);
                key[1] = times_f8_unit(type == MOE_KV_F8 && !on_queries, key[1]);
                UNROLL
                for (uint32_t h = 0; h < n_q; h++) {
                    const float *of = query + (size_t)h * k_dim;
                    l16 *lanes = &acc[h * n_positions + p];
                    *lanes = l16_fma(times_f8_unit(on_queries, l16_load(of)), key[0], *lanes);
                    *lanes = l16_fma(times_f8_unit(on_queries, l16_load(of + 16)), key[1], *lanes);
                }
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

/* Prefetches into the first-level cache: in tiles that walk down many rows, the latency of the
 * second level would show. */
MOE_INLINE void prefetch_bytes(const uint8_t *from, size_t n)
{
    for (size_t at = 0; at < n; at += 64)
        _mm_prefetch((const char *)from + at, _MM_HINT_T0);
}

MOE_INLINE void prefetch_rows(const uint8_t *const *rows, uint32_t n, size_t row_bytes)
{
    for (uint32_t p = 0; p < n; p++)
        prefetch_bytes(rows[p], row_bytes);
}

/* Scores positions j .. j + L16_TILE - 1 for n_q queries. */
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

/* Scores all positions for a group of queries. v_bytes > 0: the tiles of the first queries prefetch
 * this many bytes of each position's values. */
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
                            scores + h * MOE_KV_PAGE + j, rows->v + j, h == 0 ? v_bytes : 0);
        for (; h < n; h++)
            score_positions(type, rows->k + j, q + (size_t)h * k_dim, k_dim, 1, scale,
                            scores + h * MOE_KV_PAGE + j, rows->v + j, h == 0 ? v_bytes : 0);
    }
}

static void cap_scores(float *scores, uint32_t n_valid, float cap)
{
    for (uint32_t j = n_valid; j % 16 != 0; j++)
        scores[j] = 0.0f;
    for (uint32_t j = 0; j < n_valid; j += 16)
        l16_store(scores + j, l16_soft_cap(l16_set(cap), l16_load(scores + j)));
}

/* Turns scores into weights exp(s - max), times `unit`, which is 1 or a greater power of two.
 * Positions from n_valid on get 0. */
static void weigh_scores(float *scores, uint32_t n_valid, float unit, float *max, float *sum)
{
    for (uint32_t j = n_valid; j < MOE_KV_PAGE; j++)
        scores[j] = -INFINITY;
    l16 greatest = l16_set(-INFINITY);
    for (uint32_t j = 0; j < MOE_KV_PAGE; j += 16)
        greatest = l16_max(l16_load(scores + j), greatest);
    *max = l16_reduce_max(greatest) + 0.0f;
    /* The padding adds +0 to sums that are never -0. If the maximum is -infinity, the padding adds
     * a NaN, but then the first position has already added one. */
    l16 acc = l16_zero();
    for (uint32_t j = 0; j < MOE_KV_PAGE; j += 16) {
        l16 weights = l16_exp(l16_sub(l16_load(scores + j), l16_set(*max)));
        l16_store(scores + j, l16_mul(weights, l16_set(unit)));
        acc = l16_add(acc, weights);
    }
    *sum = l16_reduce(acc);
}

/* Sums the weighted values in n_chunks chunks, from chunk `half` of block b on, for n_q queries.
 * n_chunks is one chunk, or whole blocks. */
MOE_INLINE void value_tile(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                           const float *weights, uint32_t b, uint32_t half, uint32_t n_chunks,
                           uint32_t n_q, float *out, uint32_t v_dim, bool fetches, rows_ahead next)
{
    l16 acc[L16_TILE];
    UNROLL
    for (uint32_t i = 0; i < n_q * n_chunks; i++)
        acc[i] = l16_zero();
    for (uint32_t j = 0; j < n_valid; j++) {
        l16 value[8];
        float scales[SCALES];
        if (fetches)
            prefetch_bytes(next.from + j * next.row_bytes, next.row_bytes);
        if (n_chunks == 1)
            value[0] = load_chunk(type, rows[j], b, half);
        else if (has_scales(type))
            load_scales(type, rows[j], b, n_chunks / 2, scales);
        UNROLL
        for (uint32_t c = 0; c + 1 < n_chunks; c += 2)
            load_block(type, rows[j], b + c / 2, &scales[c / 2], &value[c]);
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

/* Only the first tile of some queries prefetches. The loops of the other tiles do not even check
 * whether to prefetch: with AVX2 this check cost many queries of F16 a tenth of their speed. */
MOE_INLINE void value_tiles(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                            const float *weights, uint32_t c, uint32_t n_chunks, uint32_t n_q,
                            float *out, uint32_t v_dim, rows_ahead next)
{
    if (c == 0 && next.row_bytes > 0)
        value_tile(type, rows, n_valid, weights, c / 2, c % 2, n_chunks, n_q, out, v_dim, true,
                   next);
    else
        value_tile(type, rows, n_valid, weights, c / 2, c % 2, n_chunks, n_q, out, v_dim, false,
                   next);
}

MOE_INLINE void value_queries(moe_kv_type type, const uint8_t *const *rows, uint32_t n_valid,
                              const float *weights, uint32_t n_q, uint32_t v_dim, float *out,
                              rows_ahead next)
{
    const uint32_t fitting = L16_TILE / n_q;
    const uint32_t all = v_dim / BLOCK * 2;
    uint32_t c = 0;
    for (; fitting >= 8 && c + 8 <= all; c += 8)
        value_tiles(type, rows, n_valid, weights, c, 8, n_q, out, v_dim, next);
    for (; fitting >= 4 && c + 4 <= all; c += 4)
        value_tiles(type, rows, n_valid, weights, c, 4, n_q, out, v_dim, next);
    for (; fitting >= 2 && c < all; c += 2)
        value_tiles(type, rows, n_valid, weights, c, 2, n_q, out, v_dim, next);
    for (; c < all; c++)
        value_tiles(type, rows, n_valid, weights, c, 1, n_q, out, v_dim, next);
    for (uint32_t h = 0; v_dim % BLOCK > 0 && h < n_q; h++)
        value_rest(type, rows, n_valid, weights + h * MOE_KV_PAGE, v_dim, out + (size_t)h * v_dim);
}

MOE_INLINE void value_group(moe_kv_type type, const page_rows *rows, uint32_t n_valid,
                            const float *weights, uint32_t n, uint32_t v_dim, float *out,
                            rows_ahead next)
{
    uint32_t h = 0;
    for (; L16_TILE >= 16 && h + 8 <= n; h += 8)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 8, v_dim,
                      out + (size_t)h * v_dim, only_if(h == 0, next));
    for (; h + 4 <= n; h += 4)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 4, v_dim,
                      out + (size_t)h * v_dim, only_if(h == 0, next));
    for (; h + 2 <= n; h += 2)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 2, v_dim,
                      out + (size_t)h * v_dim, only_if(h == 0, next));
    for (; h < n; h++)
        value_queries(type, rows->v, n_valid, weights + h * MOE_KV_PAGE, 1, v_dim,
                      out + (size_t)h * v_dim, only_if(h == 0, next));
}

MOE_INLINE void attend_rows(moe_kv_type type, const moe_attend_args *args, const page_rows *rows)
{
    float scores[GROUP * MOE_KV_PAGE]; /* the weights later */
    for (uint32_t first = 0; first < args->n_q; first += GROUP) {
        uint32_t n = args->n_q - first < GROUP ? args->n_q - first : GROUP;
        size_t v_bytes = first == 0 ? args->v_row_bytes : 0;
        rows_ahead next = {rows->k[0], 0};
        if (rows->v[0] == rows->k[0])
            v_bytes = 0;
        if (first == 0 && args->next_k != NULL)
            next = (rows_ahead){args->next_k, args->k_row_bytes};
        score_group(type, rows, args->n_valid, v_bytes, args->q + (size_t)first * args->k_dim,
                    args->k_dim, n, args->scale, scores);
        for (uint32_t h = 0; args->cap != 0.0f && h < n; h++)
            cap_scores(scores + h * MOE_KV_PAGE, args->n_valid, args->cap);
        for (uint32_t h = 0; h < n; h++)
            weigh_scores(scores + h * MOE_KV_PAGE, args->n_valid,
                         type == MOE_KV_F8 ? F8_UNIT : 1.0f, &args->max[first + h],
                         &args->sum[first + h]);
        value_group(type, rows, args->n_valid, scores, n, args->v_dim,
                    args->out + (size_t)first * args->v_dim, next);
    }
}

/* Not inlined, because types that are converted to floats call it, too. */
static __attribute__((noinline)) void attend_floats(const moe_attend_args *args,
                                                    const page_rows *rows)
{
    attend_rows(MOE_KV_F32, args, rows);
}

/* From this many queries on, a page's rows are converted once for all of them. With fewer, each
 * tile converts them again: keys for every four queries, values for every eight. */
#define CONVERT_FROM 16
/* The most elements of a page's keys, or values, that are converted: 64 positions of up to 128
 * elements. */
#define CONVERT_MOST (MOE_KV_PAGE * 128)

/* Whether converting once is faster. It is not for floats, which load and convert in one step. */
static inline bool has_codes(moe_kv_type type)
{
    return type == MOE_KV_Q8_0 || type == MOE_KV_Q4_0 || type == MOE_KV_F8;
}

static inline bool converts(const moe_attend_args *args)
{
    return has_codes(args->type) && args->n_q >= CONVERT_FROM && args->k_dim % BLOCK == 0 &&
           args->v_dim % BLOCK == 0 && MOE_KV_PAGE * args->k_dim <= CONVERT_MOST &&
           MOE_KV_PAGE * args->v_dim <= CONVERT_MOST;
}

/* Converts the first n_valid rows, of n elements each, to floats in `converted`, and points `rows`
 * there. The remaining rows of the page repeat the last one. */
MOE_INLINE void convert_rows(moe_kv_type type, const uint8_t **rows, uint32_t n_valid, uint32_t n,
                             float *converted)
{
    for (uint32_t j = 0; j < n_valid; j++) {
        float *to = converted + (size_t)j * n;
        for (uint32_t b = 0; b < n / BLOCK; b++) {
            l16 block[2];
            load_block(type, rows[j], b, NULL, block);
            l16_store(to + b * BLOCK, times_f8_unit(type == MOE_KV_F8, block[0]));
            l16_store(to + b * BLOCK + 16, times_f8_unit(type == MOE_KV_F8, block[1]));
        }
        rows[j] = (const uint8_t *)to;
    }
    for (uint32_t j = n_valid; j < MOE_KV_PAGE; j++)
        rows[j] = rows[n_valid - 1];
}

MOE_INLINE void attend_converted(moe_kv_type type, const moe_attend_args *args,
                                 const page_rows *rows)
{
    float k[CONVERT_MOST], v[CONVERT_MOST];
    page_rows converted = *rows;
    moe_attend_args as_floats = *args;
    convert_rows(type, converted.k, args->n_valid, args->k_dim, k);
    convert_rows(type, converted.v, args->n_valid, args->v_dim, v);
    as_floats.type = MOE_KV_F32;
    as_floats.k_row_bytes = as_floats.v_row_bytes = 0; /* nothing to prefetch */
    as_floats.next_k = NULL;
    attend_floats(&as_floats, &converted);
}

/* Lets the reference compute two cases that only a broken model makes: pages with a NaN, and
 * queries that F8_UNIT makes infinite. */
static void mend_f8(const moe_attend_args *args, const page_rows *rows)
{
    if (f8_nans(rows->k, args->n_valid, args->k_dim) ||
        f8_nans(rows->v, args->n_valid, args->v_dim) ||
        f8_query_overflows(args->q, (size_t)args->n_q * args->k_dim))
        moe_attend_page_c(args);
}

static void attend_f8(const moe_attend_args *args, const page_rows *rows)
{
    if (converts(args))
        attend_converted(MOE_KV_F8, args, rows);
    else
        attend_rows(MOE_KV_F8, args, rows);
    mend_f8(args, rows);
}

/* Finds the rows of the page's positions. A tile of scores may extend beyond n_valid: there the
 * last position is repeated. */
static void find_rows(const moe_attend_args *args, page_rows *rows)
{
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        uint32_t position = j < args->n_valid ? j : args->n_valid - 1;
        if (args->k_rows != NULL) {
            rows->k[j] = args->k_rows[position];
            rows->v[j] = args->v_rows[position];
        } else {
            rows->k[j] = (const uint8_t *)args->k + position * args->k_row_bytes;
            rows->v[j] = (const uint8_t *)args->v + position * args->v_row_bytes;
        }
    }
}

static void attend_page_lanes(const moe_attend_args *args)
{
    page_rows rows;
    find_rows(args, &rows);
    if (args->type == MOE_KV_F8)
        attend_f8(args, &rows);
    else if (converts(args) && args->type == MOE_KV_Q4_0)
        attend_converted(MOE_KV_Q4_0, args, &rows);
    else if (converts(args))
        attend_converted(MOE_KV_Q8_0, args, &rows);
    else if (args->type == MOE_KV_F16)
        attend_rows(MOE_KV_F16, args, &rows);
    else if (args->type == MOE_KV_F32)
        attend_floats(args, &rows);
    else if (args->type == MOE_KV_Q4_0)
        attend_rows(MOE_KV_Q4_0, args, &rows);
    else
        attend_rows(MOE_KV_Q8_0, args, &rows);
}

#endif
