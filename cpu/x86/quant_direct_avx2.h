/* SPDX-License-Identifier: MIT */
/* Products of few activation rows, whose weights come from memory: one weight row after another, a
 * group of 256 elements at a time. A run (the elements that share a scale) of 32 gives a register
 * of eight partial sums. A tree of additions folds the eight registers of a group into one register
 * (two for runs of 16) with a run in each lane. So one instruction multiplies the sums of eight
 * runs by their scales or minima. All activation rows share the unpacked codes.
 */
#ifndef MOE_X86_QUANT_DIRECT_AVX2_H
#define MOE_X86_QUANT_DIRECT_AVX2_H

#include "cpu/x86/quant_rows_avx2.h"
#include "cpu/x86/reduce_avx2.h"

enum { DIRECT_OUT = 4, MAX_DIRECT_ROWS = 4, PREFETCH_BYTES = 4096 };

/* Whether partial_sums() gives words of 16 bits, each the sum of two products. The fold adds two of
 * them before it widens them. Fewer products than four fill a word. */
MOE_INLINE bool parts_are_words(moe_dtype type, vnni_dot dot)
{
    return dot == NULL && products_in_16_bits(type, dot) >= 4;
}

/* Multiplies 32 codes with 32 activations. Each of the eight lanes gets the sum of four products,
 * or two sums of two products. */
MOE_INLINE __m256i partial_sums(moe_dtype type, vnni_dot dot, __m256i codes, __m256i q)
{
    if (dot != NULL) {
        return dot(_mm256_setzero_si256(), codes, q);
    }
    if (codes_are_signed(type, dot)) {
        q = _mm256_sign_epi8(q, codes);
        codes = _mm256_abs_epi8(codes);
    }
    const __m256i words = _mm256_maddubs_epi16(codes, q);
    return parts_are_words(type, dot) ? words : pairs_of_words(words);
}

/* fold_4() of words. They are shuffled before they are widened: shuffles have ports of their own,
 * which vpmaddwd would take from the products. */
MOE_INLINE __m256i fold_4_words(moe_dtype type, const __m256i s[4])
{
    const bool fit_again = products_in_16_bits(type, NULL) >= 8;
    __m256i ab =
        _mm256_add_epi16(_mm256_unpacklo_epi64(s[0], s[1]), _mm256_unpackhi_epi64(s[0], s[1]));
    __m256i cd =
        _mm256_add_epi16(_mm256_unpacklo_epi64(s[2], s[3]), _mm256_unpackhi_epi64(s[2], s[3]));
    if (!fit_again) {
        ab = pairs_of_words(ab);
        cd = pairs_of_words(cd);
    }
    const __m256 low = _mm256_castsi256_ps(ab), high = _mm256_castsi256_ps(cd);
    const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88));
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd));
    return fit_again ? pairs_of_words(_mm256_add_epi16(even, odd)) : _mm256_add_epi32(even, odd);
}

/* In each 128-bit half, lane i gets the sum of the parts s[i]. */
MOE_INLINE __m256i fold_4(moe_dtype type, vnni_dot dot, const __m256i s[4])
{
    if (parts_are_words(type, dot)) {
        return fold_4_words(type, s);
    }
    if (products_in_16_bits(type, dot) >= 8) {
        const __m256i ab = pairs_of_words(_mm256_packs_epi32(s[0], s[1]));
        const __m256i cd = pairs_of_words(_mm256_packs_epi32(s[2], s[3]));
        return pairs_of_words(_mm256_packs_epi32(ab, cd));
    }
    const __m256i ab =
        _mm256_add_epi32(_mm256_unpacklo_epi32(s[0], s[1]), _mm256_unpackhi_epi32(s[0], s[1]));
    const __m256i cd =
        _mm256_add_epi32(_mm256_unpacklo_epi32(s[2], s[3]), _mm256_unpackhi_epi32(s[2], s[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

/* Adds scale * x.d * sum + min * dsum of eight runs to acc. */
MOE_INLINE __m256 add_runs(moe_dtype type, vnni_dot dot, __m256 acc, __m256i sums, __m256 scales,
                           __m256 mins, __m256 d, const int32_t *x_sum, const float *x_dsum)
{
    if (has_offset(type, dot)) {
        const __m256i x_sums = _mm256_loadu_si256((const __m256i *)x_sum);
        sums = _mm256_sub_epi32(sums, _mm256_slli_epi32(x_sums, quant_type_of(type).offset_shift));
    }
    acc = _mm256_fmadd_ps(_mm256_mul_ps(scales, d), _mm256_cvtepi32_ps(sums), acc);
    if (quant_type_of(type).has_mins) {
        acc = _mm256_fmadd_ps(mins, _mm256_loadu_ps(x_dsum), acc);
    }
    return acc;
}

/* Adds group g of the row; groups are counted from the start of x. */
MOE_INLINE void direct_group(moe_dtype type, vnni_dot dot, const uint8_t *group, const x_row *x,
                             int n_rows, size_t g, lanes_avx2 *acc)
{
    const group_scales w = scales_of_group(type, group);
    __m256i folded[MAX_DIRECT_ROWS][2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256i parts[MAX_DIRECT_ROWS][4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int e = 4 * half + i;
            const __m256i codes = codes_of_group(type, group, e, codes_are_signed(type, dot));
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++) {
                const __m256i q = _mm256_loadu_si256((const __m256i *)(x[r].q + MOE_GROUP * g) + e);
                parts[r][i] = partial_sums(type, dot, codes, q);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            folded[r][half] = fold_4(type, dot, parts[r]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const __m256i low = folded[r][0], high = folded[r][1];
        const __m256 d = _mm256_loadu_ps(x[r].d + 8 * g);
        if (quant_type_of(type).run == 32) {
            const __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                                  _mm256_permute2x128_si256(low, high, 0x31));
            acc[r].half[0] = add_runs(type, dot, acc[r].half[0], sums, w.scales[0], w.mins[0], d,
                                      x[r].sum + 8 * g, x[r].dsum + 8 * g);
            continue;
        }
        /* The lower half of each register has even runs, the upper half odd ones. */
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        const __m256 d_low = _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        const __m256 d_high =
            _mm256_permutevar8x32_ps(d, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
        acc[r].half[0] =
            add_runs(type, dot, acc[r].half[0], _mm256_permutevar8x32_epi32(low, order),
                     w.scales[0], w.mins[0], d_low, x[r].sum + 16 * g, x[r].dsum + 16 * g);
        acc[r].half[1] =
            add_runs(type, dot, acc[r].half[1], _mm256_permutevar8x32_epi32(high, order),
                     w.scales[1], w.mins[1], d_high, x[r].sum + 16 * g + 8, x[r].dsum + 16 * g + 8);
    }
}

/* Computes DIRECT_OUT outputs from o on of all n_rows rows. */
MOE_INLINE void direct_rows(moe_dtype type, vnni_dot dot, const moe_matmul_args *args, uint32_t o,
                            int n_rows)
{
    const quant_type t = quant_type_of(type);
    const uint32_t left = args->n_out - o;
    x_row x[MAX_DIRECT_ROWS];
    lanes_avx2 sums[MAX_DIRECT_ROWS][DIRECT_OUT];
    group_copy copy;
    for (int r = 0; r < n_rows; r++) {
        x[r] = x_row_of(args, (uint32_t)r, 0, t.run);
    }
    for (uint32_t i = 0; i < DIRECT_OUT; i++) {
        const uint8_t *weights = weight_row(args, o + i);
        lanes_avx2 acc[MAX_DIRECT_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            acc[r].half[0] = acc[r].half[1] = _mm256_setzero_ps();
        }
        for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
            const uint8_t *group = weights + k / MOE_GROUP * group_bytes_of(type);
            prefetch_group(type, group, PREFETCH_BYTES);
            group = whole_group(type, group, args->n_in - k, &copy);
            direct_group(type, dot, group, x, n_rows, k / MOE_GROUP, acc);
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            sums[r][i] = acc[r];
        }
    }
    for (int r = 0; r < n_rows; r++) {
        const __m128 four = t.run == 16 ? reduce_4(sums[r])
                                        : reduce_4_of_8(sums[r][0].half[0], sums[r][1].half[0],
                                                        sums[r][2].half[0], sums[r][3].half[0]);
        store_first(out_row(args, (uint32_t)r) + o, four, left < DIRECT_OUT ? left : DIRECT_OUT);
    }
}

#endif
