/* SPDX-License-Identifier: MIT */
/* Attention of many queries to a whole page, with AVX-512. It computes the same sums as
 * attend_lanes.h, which is included first, in another way.
 *
 *  scores   Keys are converted once for all queries and transposed ("turned"), so that a register
 *           holds one element of sixteen positions. Then a register has one lane of the contract
 *           for sixteen positions, and the tree of lanes is fifteen additions of registers, without
 *           a shuffle. Lanes come in the order 0, 8, 4, 12, 2, ... so that each can be added to the
 *           tree right away.
 *  values   Thirty-two elements of all values are converted once for all queries.
 *
 * A tile is eight queries by thirty-two positions, or by thirty-two elements of the values. */
#ifndef MOE_X86_ATTEND_COLUMNS_AVX512_H
#define MOE_X86_ATTEND_COLUMNS_AVX512_H

#include "cpu/x86/attend_lanes.h"
#include "cpu/x86/transpose_avx512.h"

/* Queries of a call: with fewer than COLUMNS_FROM, transposing the keys does not pay; there are
 * never more than COLUMNS_QUERIES. */
#define COLUMNS_FROM    32
#define COLUMNS_QUERIES 64
#define COLUMNS_MOST    576 /* elements of a key or a value */
#define STRIP           32  /* positions whose keys are turned at a time */
#define TILE_QUERIES    8
#define TILE_LANES      16 /* registers of a tile: eight queries by two */

/* Keys of STRIP positions: [half of the positions][chunk][lane]; each entry has sixteen positions.
 */
typedef struct key_strip {
    l16 of[2][COLUMNS_MOST / 16][16];
} key_strip;

MOE_INLINE void turn_keys(moe_kv_type type, const uint8_t *const *rows, uint32_t k_dim,
                          key_strip *strip)
{
    for (uint32_t half = 0; half < 2; half++) {
        for (uint32_t b = 0; b < k_dim / BLOCK; b++) {
            __m512i low[16], high[16];
            for (uint32_t p = 0; p < 16; p++) {
                l16 key[2];
                load_block(type, rows[16 * half + p], b, NULL, key);
                low[p] = _mm512_castps_si512(times_f8_unit(type == MOE_KV_F8, key[0]));
                high[p] = _mm512_castps_si512(times_f8_unit(type == MOE_KV_F8, key[1]));
            }
            store_columns(strip->of[half][2 * b], low, 16);
            store_columns(strip->of[half][2 * b + 1], high, 16);
        }
    }
}

/* Adds to acc[2 * h + half] one lane of query h's products with half of the strip's positions. */
MOE_INLINE void multiply_lane(const key_strip *strip, uint32_t lane, const float *q, uint32_t k_dim,
                              uint32_t n_q, l16 acc[TILE_LANES])
{
    UNROLL
    for (uint32_t a = 0; a < 2 * n_q; a++)
        acc[a] = l16_zero();
    for (uint32_t c = 0; c < k_dim / 16; c++) {
        const l16 low = strip->of[0][c][lane], high = strip->of[1][c][lane];
        UNROLL
        for (uint32_t h = 0; h < n_q; h++) {
            const l16 element = l16_set(q[(size_t)h * k_dim + 16 * c + lane]);
            acc[2 * h] = l16_fma(element, low, acc[2 * h]);
            acc[2 * h + 1] = l16_fma(element, high, acc[2 * h + 1]);
        }
    }
}

MOE_INLINE void add_lanes_to(l16 acc[TILE_LANES], const l16 sums[TILE_LANES], uint32_t n)
{
    UNROLL
    for (uint32_t a = 0; a < n; a++)
        acc[a] = l16_add(sums[a], acc[a]);
}

MOE_INLINE void keep_lanes(l16 sums[TILE_LANES], const l16 acc[TILE_LANES], uint32_t n)
{
    UNROLL
    for (uint32_t a = 0; a < n; a++)
        sums[a] = acc[a];
}

/* Computes scores[h][p] of n_q queries and the strip's positions. */
MOE_INLINE void score_columns(const key_strip *strip, const float *q, uint32_t k_dim, uint32_t n_q,
                              float scale, float *scores)
{
    l16 one[TILE_LANES], two[TILE_LANES], four[4][TILE_LANES]; /* sums of 1, 2 and 4 lanes */
    l16 acc[TILE_LANES];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t lane = (i & 1) << 1 | i >> 1;
        multiply_lane(strip, lane, q, k_dim, n_q, acc);
        keep_lanes(one, acc, 2 * n_q);
        multiply_lane(strip, lane + 8, q, k_dim, n_q, acc);
        add_lanes_to(acc, one, 2 * n_q);
        keep_lanes(two, acc, 2 * n_q);
        multiply_lane(strip, lane + 4, q, k_dim, n_q, acc);
        keep_lanes(one, acc, 2 * n_q);
        multiply_lane(strip, lane + 12, q, k_dim, n_q, acc);
        add_lanes_to(acc, one, 2 * n_q);
        add_lanes_to(acc, two, 2 * n_q);
        keep_lanes(four[i], acc, 2 * n_q);
    }
    UNROLL
    for (uint32_t a = 0; a < 2 * n_q; a++) {
        l16 sum = l16_add(l16_add(four[0][a], four[1][a]), l16_add(four[2][a], four[3][a]));
        l16_store(scores + a / 2 * MOE_KV_PAGE + a % 2 * 16, l16_mul(l16_set(scale), sum));
    }
}

MOE_INLINE void score_strip(const moe_attend_args *args, uint32_t k_dim, const key_strip *strip,
                            float *scores)
{
    uint32_t h = 0;
    for (; h + TILE_QUERIES <= args->n_q; h += TILE_QUERIES)
        score_columns(strip, args->q + (size_t)h * k_dim, k_dim, TILE_QUERIES, args->scale,
                      scores + h * MOE_KV_PAGE);
    for (; h < args->n_q; h++)
        score_columns(strip, args->q + (size_t)h * k_dim, k_dim, 1, args->scale,
                      scores + h * MOE_KV_PAGE);
}

/* Computes out[h][0 .. 31] of n_q queries: the weighted sum of thirty-two elements of the values
 * over all positions. */
MOE_INLINE void value_columns(const l16 values[MOE_KV_PAGE][2], const float *weights, uint32_t n_q,
                              float *out, uint32_t v_dim)
{
    l16 acc[TILE_LANES];
    UNROLL
    for (uint32_t a = 0; a < 2 * n_q; a++)
        acc[a] = l16_zero();
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        const l16 low = values[j][0], high = values[j][1];
        UNROLL
        for (uint32_t h = 0; h < n_q; h++) {
            const l16 weight = l16_set(weights[h * MOE_KV_PAGE + j]);
            acc[2 * h] = l16_fma(weight, low, acc[2 * h]);
            acc[2 * h + 1] = l16_fma(weight, high, acc[2 * h + 1]);
        }
    }
    UNROLL
    for (uint32_t a = 0; a < 2 * n_q; a++)
        l16_store(out + (size_t)(a / 2) * v_dim + a % 2 * 16, acc[a]);
}

MOE_INLINE void weigh_columns(moe_kv_type type, const moe_attend_args *args, const page_rows *rows,
                              const float *weights)
{
    for (uint32_t b = 0; b < args->v_dim / BLOCK; b++) {
        l16 values[MOE_KV_PAGE][2];
        for (uint32_t j = 0; j < MOE_KV_PAGE; j++)
            load_block(type, rows->v[j], b, NULL, values[j]);
        float *out = args->out + b * BLOCK;
        uint32_t h = 0;
        for (; h + TILE_QUERIES <= args->n_q; h += TILE_QUERIES)
            value_columns(values, weights + h * MOE_KV_PAGE, TILE_QUERIES,
                          out + (size_t)h * args->v_dim, args->v_dim);
        for (; h < args->n_q; h++)
            value_columns(values, weights + h * MOE_KV_PAGE, 1, out + (size_t)h * args->v_dim,
                          args->v_dim);
    }
}

/* Whether this way is faster. It is not for pages of F32, which need no conversion. */
static bool takes_columns(const moe_attend_args *args)
{
    return args->type != MOE_KV_F32 && args->n_q >= COLUMNS_FROM && args->n_q <= COLUMNS_QUERIES &&
           args->n_valid == MOE_KV_PAGE && args->k_dim % BLOCK == 0 && args->v_dim % BLOCK == 0 &&
           args->k_dim <= COLUMNS_MOST;
}

MOE_INLINE void attend_columns(moe_kv_type type, const moe_attend_args *args, const page_rows *rows)
{
    _Alignas(64) float weights[COLUMNS_QUERIES * MOE_KV_PAGE]; /* at first the scores */
    key_strip strip;
    for (uint32_t first = 0; first < MOE_KV_PAGE; first += STRIP) {
        turn_keys(type, rows->k + first, args->k_dim, &strip);
        if (args->k_dim == 128)
            score_strip(args, 128, &strip, weights + first);
        else
            score_strip(args, args->k_dim, &strip, weights + first);
    }
    for (uint32_t h = 0; h < args->n_q; h++) {
        if (args->cap != 0.0f)
            cap_scores(weights + h * MOE_KV_PAGE, MOE_KV_PAGE, args->cap);
        weigh_scores(weights + h * MOE_KV_PAGE, MOE_KV_PAGE, type == MOE_KV_F8 ? F8_UNIT : 1.0f,
                     &args->max[h], &args->sum[h]);
    }
    weigh_columns(type, args, rows, weights);
}

static void attend_page_columns(const moe_attend_args *args)
{
    page_rows rows;
    find_rows(args, &rows);
    if (args->type == MOE_KV_F16)
        attend_columns(MOE_KV_F16, args, &rows);
    else if (args->type == MOE_KV_Q8_0)
        attend_columns(MOE_KV_Q8_0, args, &rows);
    else if (args->type == MOE_KV_Q4_0)
        attend_columns(MOE_KV_Q4_0, args, &rows);
    else {
        attend_columns(MOE_KV_F8, args, &rows);
        mend_f8(args, &rows);
    }
}

#endif
