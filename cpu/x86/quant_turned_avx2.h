/* SPDX-License-Identifier: MIT */
/* Products of more activation rows than direct_tile() takes, up to MAX_TURNED_ROWS: eight weight
 * rows at a time, one group of 256 elements after another. 32 codes of each of four weight rows are
 * transposed in registers ("turned"), so that a register has eight neighbouring codes of each row:
 *
 *   a0..a31              a0..a7   b0..b7   c0..c7   d0..d7
 *   b0..b31              a8..a15  b8..b15  c8..c15  d8..d15
 *   c0..c31       ->     a16..    b16..    c16..    d16..
 *   d0..d31              a24..    b24..    c24..    d24..
 *
 * Eight activations are loaded into every quarter of a register. The products of a run (the 16 or
 * 32 elements that share a scale) are added up lane by lane, and then only one fold for eight
 * outputs is left. Turning takes two shuffles for 32 codes, which all activation rows share. The
 * panels of quant_panel_avx2.h need no fold, but three shuffles and a way through the cache. The
 * next tile is prefetched in the order of its addresses, so that the processor's own prefetcher
 * follows. */
#ifndef MOE_X86_QUANT_TURNED_AVX2_H
#define MOE_X86_QUANT_TURNED_AVX2_H

#include "cpu/x86/quant_panel_avx2.h"

enum { TURNED_OUT = 8, MAX_TURNED_ROWS = 8, TURNED_PREFETCH = 4096 };

/* 32 codes of eight weight rows: of rows 0, 1, 4, 5, and of rows 2, 3, 6, 7. */
typedef struct turned_codes {
    __m256i part[2][4];
} turned_codes;

/* The scales and minima of a group of eight weight rows, by run. */
typedef struct turned_scales {
    float scales[MAX_LANES][TURNED_OUT];
    float mins[MAX_LANES][TURNED_OUT];
} turned_scales;

MOE_INLINE void turn_4(const __m256i rows[4], __m256i columns[4])
{
    const __m256i even_01 = _mm256_unpacklo_epi64(rows[0], rows[1]);
    const __m256i odd_01 = _mm256_unpackhi_epi64(rows[0], rows[1]);
    const __m256i even_23 = _mm256_unpacklo_epi64(rows[2], rows[3]);
    const __m256i odd_23 = _mm256_unpackhi_epi64(rows[2], rows[3]);
    columns[0] = _mm256_permute2x128_si256(even_01, even_23, 0x20);
    columns[1] = _mm256_permute2x128_si256(odd_01, odd_23, 0x20);
    columns[2] = _mm256_permute2x128_si256(even_01, even_23, 0x31);
    columns[3] = _mm256_permute2x128_si256(odd_01, odd_23, 0x31);
}

MOE_INLINE __m256i broadcast_8(const int8_t *q)
{
    int64_t word;
    memcpy(&word, q, 8);
    return _mm256_set1_epi64x(word);
}

/* The sums of a run of eight weight rows, in the order of the rows. The run is `n` columns of each
 * half from `first` on. */
MOE_INLINE __m256i turned_sums(moe_dtype type, vnni_dot dot, const turned_codes *codes,
                               const int8_t *q, int first, int n)
{
    const bool is_signed = codes_are_signed(type, dot);
    const bool in_words = products_in_16_bits(type, dot) >= 2 * n;
    __m256i sums[2];
#pragma GCC unroll 4
    for (int c = 0; c < n; c++) {
        const __m256i x = broadcast_8(q + 8 * (first + c));
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) {
            const __m256i w = codes->part[p][first + c];
            if (dot != NULL) {
                sums[p] = dot(c == 0 ? _mm256_setzero_si256() : sums[p], w, x);
                continue;
            }
            __m256i products =
                is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                          : _mm256_maddubs_epi16(w, x);
            if (!in_words) {
                products = pairs_of_words(products);
                sums[p] = c == 0 ? products : in_order(_mm256_add_epi32(sums[p], products));
            } else {
                sums[p] = c == 0 ? products : in_order(_mm256_add_epi16(sums[p], products));
            }
        }
    }
    if (dot == NULL && in_words) {
        sums[0] = pairs_of_words(sums[0]);
        sums[1] = pairs_of_words(sums[1]);
    }
    const __m256 low = _mm256_castsi256_ps(sums[0]);
    const __m256 high = _mm256_castsi256_ps(sums[1]);
    return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)),
                            _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)));
}

/* Adds 32 elements of a group, the e-th, to the lanes of one activation row. */
MOE_INLINE void add_turned(moe_dtype type, vnni_dot dot, const turned_codes *codes,
                           const turned_scales *w, const x_row *x, int e, __m256 *lanes)
{
    const quant_type t = quant_type_of(type);
    const int n_runs = t.run == 32 ? 1 : 2;
    const __m256 d = _mm256_broadcast_ss(x->d + e);
#pragma GCC unroll 2
    for (int half = 0; half < n_runs; half++) {
        const int lane = n_runs * e + half;
        __m256i sums = turned_sums(type, dot, codes, x->q + 32 * e, half * 2, 4 / n_runs);
        if (has_offset(type, dot)) {
            const __m256i sum = _mm256_set1_epi32(x->sum[lane]);
            sums = _mm256_sub_epi32(sums, _mm256_slli_epi32(sum, t.offset_shift));
        }
        const __m256 scale = _mm256_mul_ps(_mm256_load_ps(w->scales[lane]), d);
        __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sums), lanes[lane]);
        if (t.has_mins) {
            acc = _mm256_fmadd_ps(_mm256_load_ps(w->mins[lane]),
                                  _mm256_broadcast_ss(x->dsum + lane), acc);
        }
        lanes[lane] = acc;
    }
}

MOE_INLINE void turn_scales(moe_dtype type, const uint8_t *const *groups, turned_scales *out)
{
    const quant_type t = quant_type_of(type);
    group_scales scales[TURNED_OUT];
#pragma GCC unroll 8
    for (int i = 0; i < TURNED_OUT; i++) {
        scales[i] = scales_of_group(type, groups[i]);
    }
    for (uint32_t half = 0; half < MOE_GROUP / t.run / 8; half++) {
        transpose_8(&scales[0].scales[half], sizeof scales[0], out->scales[8 * half]);
        if (t.has_mins) {
            transpose_8(&scales[0].mins[half], sizeof scales[0], out->mins[8 * half]);
        }
    }
}

/* Computes TURNED_OUT outputs from o on, of all activation rows (at most MAX_TURNED_ROWS). */
MOE_INLINE void turned_tile(moe_dtype type, vnni_dot dot, const moe_matmul_args *args, uint32_t o)
{
    const uint32_t n_rows = args->n_rows;
    const quant_type t = quant_type_of(type);
    const uint32_t n_lanes = MOE_GROUP / t.run;
    const size_t tile_bytes = TURNED_OUT * args->row_bytes;
    const size_t bytes = group_bytes_of(type);
    const size_t prefetch = (TURNED_PREFETCH / (tile_bytes + 1) + 1) * tile_bytes;
    const uint8_t *weights[TURNED_OUT], *groups[TURNED_OUT];
    group_copy copies[TURNED_OUT];
    x_row x[MAX_TURNED_ROWS];
    __m256 lanes[MAX_TURNED_ROWS][MAX_LANES];
    _Alignas(32) turned_scales scales;
    for (uint32_t i = 0; i < TURNED_OUT; i++) {
        weights[i] = weight_row(args, o + i);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        x[r] = x_row_of(args, r, 0, t.run);
        memset(lanes[r], 0, n_lanes * sizeof lanes[r][0]);
    }
    for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
        const size_t g = k / MOE_GROUP;
        for (uint32_t i = 0; i < TURNED_OUT; i++) {
            groups[i] = whole_group(type, weights[i] + g * bytes, args->n_in - k, &copies[i]);
        }
        turn_scales(type, groups, &scales);
#pragma GCC unroll 8
        for (int e = 0; e < 8; e++) {
            turned_codes codes;
            prefetch_group(type, weights[0] + (8 * g + (size_t)e) * bytes, prefetch);
#pragma GCC unroll 2
            for (int p = 0; p < 2; p++) {
                static const uint8_t order[2][4] = {{0, 1, 4, 5}, {2, 3, 6, 7}};
                __m256i rows[4];
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    rows[i] =
                        codes_of_group(type, groups[order[p][i]], e, codes_are_signed(type, dot));
                }
                turn_4(rows, codes.part[p]);
            }
#pragma GCC unroll 1
            for (uint32_t r = 0; r < n_rows; r++) {
                add_turned(type, dot, &codes, &scales, &x[r], e, lanes[r]);
            }
        }
        for (uint32_t r = 0; r < n_rows; r++) {
            x[r] = (x_row){x[r].q + MOE_GROUP, x[r].d + MOE_GROUP / 32, x[r].sum + n_lanes,
                           x[r].dsum + n_lanes};
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        store_eight(out_row(args, r) + o, reduce_lanes(lanes[r], n_lanes), args->n_out - o);
    }
}

#endif
