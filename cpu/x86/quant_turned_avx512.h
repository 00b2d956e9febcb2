/* SPDX-License-Identifier: MIT */
/* Products of more than MAX_DIRECT_ROWS activation rows, up to MAX_TURNED_ROWS, with AVX-512 VNNI:
 * sixteen weight rows at a time. A chunk of 64 codes of each of eight rows is transposed in
 * registers ("turned"), so that a register has eight neighbouring codes of every row:
 *
 *   a0..a63         a0..a7   b0..b7   ..  h0..h7
 *   b0..b63         a8..a15  b8..b15  ..  h8..h15
 *   ...        ->   ...
 *   h0..h63         a56..    b56..    ..  h56..
 *
 * Eight activations are loaded into every eighth of a register, once for all sixteen weight rows.
 * (With eight weight rows, the loads limited the speed.) The products of a run (the 16 or 32
 * elements that share a scale) are added up lane by lane. One fold then gives the sums of two runs
 * of eight weight rows. Quarter q has the sums of rows 2q and 2q + 1, first for the even run, then
 * for the odd one. Scales, minima and the lanes of the contract have the same order. Turning takes
 * three shuffles for 64 codes, which all activation rows share. The next tile is prefetched in the
 * order of its addresses. */
#ifndef MOE_X86_QUANT_TURNED_AVX512_H
#define MOE_X86_QUANT_TURNED_AVX512_H

#include "cpu/x86/quant_turned_scales_avx512.h"

#include <stdbool.h>

enum { TURNED_OUT = 2 * TURNED_HALF, MAX_TURNED_ROWS = 12, MAX_LANES = 16, TURNED_PREFETCH = 4096 };

/* Transposes a chunk of eight rows: columns[i] has the i-th eight codes of each row. */
MOE_INLINE void turn_8(const __m512i rows[TURNED_HALF], __m512i columns[8])
{
    __m512i even[4], odd[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        even[i] = _mm512_unpacklo_epi64(rows[2 * i], rows[2 * i + 1]);
        odd[i] = _mm512_unpackhi_epi64(rows[2 * i], rows[2 * i + 1]);
    }
    turn_quarters(even, &columns[0], 2, 4);
    turn_quarters(odd, &columns[1], 2, 4);
}

MOE_INLINE __m512i broadcast_8(const int8_t *q)
{
    int64_t word;
    memcpy(&word, q, 8);
    return _mm512_set1_epi64(word);
}

/* Puts the numbers of two neighbouring runs into the order of the folded sums. */
MOE_INLINE __m512i by_run(const void *two)
{
    int64_t word;
    memcpy(&word, two, 8);
    return _mm512_shuffle_epi32(_mm512_set1_epi64(word), _MM_PERM_BBAA);
}

/* The codes of a chunk of 16 weight rows, as columns of eight rows each. */
typedef struct turned_codes {
    __m512i half[2][8];
} turned_codes;

/* The sums of a run, whose codes are n columns from `first` on. Each eighth of the result has two
 * numbers, whose sum is the run's sum plus `start`. */
MOE_INLINE void turned_sums(const turned_codes *codes, int first, int n, const int8_t *q,
                            int64_t start, __m512 sums[2])
{
    __m512i s[2] = {_mm512_set1_epi64(start), _mm512_set1_epi64(start)};
#pragma GCC unroll 4
    for (int i = first; i < first + n; i++) {
        const __m512i x = broadcast_8(q + 8 * i);
        s[0] = _mm512_dpbusd_epi32(s[0], codes->half[0][i], x);
        s[1] = _mm512_dpbusd_epi32(s[1], codes->half[1][i], x);
    }
    sums[0] = _mm512_castsi512_ps(s[0]);
    sums[1] = _mm512_castsi512_ps(s[1]);
}

/* Adds chunk c of a group to the lanes of one activation row, one pair of runs after the other. */
MOE_INLINE void add_turned(quant_type t, const turned_codes *codes, const turned_scales w[2],
                           const x_row *x, const int64_t *starts, int c,
                           __m512 lanes[2][MAX_TURNED_PAIRS])
{
    const int n_pairs = t.run == 32 ? 1 : 2;
    const int n = 4 / n_pairs; /* columns of a run */
#pragma GCC unroll 2
    for (int i = 0; i < n_pairs; i++) {
        const int pair = n_pairs * c + i;
        __m512 even[2], odd[2];
        const bool has_offset = t.offset_shift >= 0;
        turned_sums(codes, 4 * i, n, x->q + 64 * c, has_offset ? starts[2 * pair] : 0, even);
        turned_sums(codes, 4 * i + n, n, x->q + 64 * c, has_offset ? starts[2 * pair + 1] : 0, odd);
        const __m512 d =
            t.run == 32 ? _mm512_castsi512_ps(by_run(x->d + 2 * pair)) : _mm512_set1_ps(x->d[pair]);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m512i sums =
                _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(even[h], odd[h], 0x88)),
                                 _mm512_castps_si512(_mm512_shuffle_ps(even[h], odd[h], 0xdd)));
            const __m512 scale = _mm512_mul_ps(w[h].scales[pair], d);
            __m512 acc = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums), lanes[h][pair]);
            if (t.has_mins) {
                acc = _mm512_fmadd_ps(w[h].mins[pair],
                                      _mm512_castsi512_ps(by_run(x->dsum + 2 * pair)), acc);
            }
            lanes[h][pair] = acc;
        }
    }
}

/* Adds the lanes of eight outputs up by the contract's tree. */
MOE_INLINE __m256 reduce_turned(const __m512 *lanes, uint32_t n_pairs)
{
    __m512 sum[MAX_TURNED_PAIRS];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n_pairs; i++) {
        sum[i] = lanes[i];
    }
#pragma GCC unroll 4
    for (uint32_t h = n_pairs / 2; h > 0; h /= 2) {
#pragma GCC unroll 4
        for (uint32_t i = 0; i < h; i++) {
            sum[i] = _mm512_add_ps(sum[i], sum[i + h]);
        }
    }
    sum[0] = _mm512_add_ps(sum[0], _mm512_permute_ps(sum[0], 0x4e));
    const __m512i firsts = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(firsts, sum[0]));
}

/* The starts of the integer sums of a group's runs: minus the excess due to unsigned codes, in the
 * low half of each start. */
MOE_INLINE void find_starts(quant_type t, const x_row *x, int64_t *starts)
{
#pragma GCC unroll 2
    for (uint32_t i = 0; i < MOE_GROUP / t.run; i += 8) {
        const __m256i sum = _mm256_loadu_si256((const __m256i *)(x->sum + i));
        const __m256i excess = _mm256_slli_epi32(sum, t.offset_shift);
        const __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), excess);
        _mm512_store_si512(starts + i, _mm512_cvtepu32_epi64(start));
    }
}

/* Computes TURNED_OUT outputs from o on, of all activation rows (at most MAX_TURNED_ROWS). */
MOE_INLINE void turned_tile(moe_dtype type, const moe_matmul_args *args, uint32_t o)
{
    const quant_type t = quant_type_of(type);
    const uint32_t n_rows = args->n_rows;
    const uint32_t n_lanes = MOE_GROUP / t.run;
    const size_t bytes = group_bytes_of(type);
    const size_t tile_bytes = TURNED_OUT * args->row_bytes;
    const size_t prefetch = (TURNED_PREFETCH / (tile_bytes + 1) + 1) * tile_bytes;
    const uint8_t *weights[TURNED_OUT], *groups[TURNED_OUT];
    group_copy copies[TURNED_OUT];
    x_row x[MAX_TURNED_ROWS];
    _Alignas(64) int64_t starts[MAX_TURNED_ROWS][MAX_LANES];
    __m512 lanes[MAX_TURNED_ROWS][2][MAX_TURNED_PAIRS];
    for (uint32_t i = 0; i < TURNED_OUT; i++) {
        weights[i] = weight_row(args, o + i);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        x[r] = x_row_of(args, r, 0, t.run);
        memset(lanes[r], 0, sizeof lanes[r]);
    }
    for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
        const size_t g = k / MOE_GROUP;
        group_points points[TURNED_OUT];
        turned_scales turned[2];
        for (uint32_t i = 0; i < TURNED_OUT; i++) {
            groups[i] = whole_group(type, weights[i] + g * bytes, args->n_in - k, &copies[i]);
        }
#pragma GCC unroll 1
        for (int h = 0; h < 2; h++) {
            turn_scales(type, groups + TURNED_HALF * h, points + TURNED_HALF * h, &turned[h]);
        }
        for (uint32_t r = 0; t.offset_shift >= 0 && r < n_rows; r++) {
            find_starts(t, &x[r], starts[r]);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            turned_codes codes;
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                __m512i rows[TURNED_HALF];
#pragma GCC unroll 8
                for (int i = 0; i < TURNED_HALF; i++) {
                    rows[i] = codes_of_chunk(type, groups[TURNED_HALF * h + i],
                                             &points[TURNED_HALF * h + i], c);
                }
                turn_8(rows, codes.half[h]);
            }
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; i++) {
                prefetch_group(type, weights[0] + (16 * g + 4 * (size_t)c + i) * bytes, prefetch);
            }
#pragma GCC unroll 1
            for (uint32_t r = 0; r < n_rows; r++) {
                add_turned(t, &codes, turned, &x[r], starts[r], c, lanes[r]);
            }
        }
        for (uint32_t r = 0; r < n_rows; r++) {
            x[r] = (x_row){x[r].q + MOE_GROUP, x[r].d + MOE_GROUP / 32, x[r].sum + n_lanes,
                           x[r].dsum + n_lanes};
        }
    }
    const uint32_t left = args->n_out - o;
    const __mmask16 valid = (__mmask16)(left < TURNED_OUT ? (1u << left) - 1 : 0xffff);
    for (uint32_t r = 0; r < n_rows; r++) {
        const __m256 low = reduce_turned(lanes[r][0], n_lanes / 2);
        const __m256 high = reduce_turned(lanes[r][1], n_lanes / 2);
        _mm512_mask_storeu_ps(out_row(args, r) + o, valid,
                              _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
    }
}

#endif
