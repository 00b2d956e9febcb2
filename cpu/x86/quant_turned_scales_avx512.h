/* SPDX-License-Identifier: MIT */
/* Scales and minima of eight weight rows, transposed ("turned") for quant_turned_avx512.h. There is
 * a register for each pair of runs. Its quarter q has rows 2q and 2q + 1, first for the even run,
 * then for the odd one. Types with blocks of 256 elements have integers of one byte, and one or two
 * factors for a group: the bytes are turned, then converted to floats, sixteen at a time. Other
 * types have floats, which are turned. */
#ifndef MOE_X86_QUANT_TURNED_SCALES_AVX512_H
#define MOE_X86_QUANT_TURNED_SCALES_AVX512_H

#include "cpu/x86/quant_unpack_avx512.h"

enum {
    TURNED_HALF = 8,     /* weight rows that are turned together */
    MAX_TURNED_PAIRS = 8 /* of runs of 16 elements in a group */
};

/* The scales and minima of a group of eight weight rows, by pair of runs. */
typedef struct turned_scales {
    __m512 scales[MAX_TURNED_PAIRS];
    __m512 mins[MAX_TURNED_PAIRS];
} turned_scales;

/* Transposes quarters: to[i * stride] gets quarter i of each of the four registers, for i < n. */
MOE_INLINE void turn_quarters(const __m512i from[4], __m512i *to, int stride, int n)
{
    const __m512i low_01 = _mm512_shuffle_i32x4(from[0], from[1], 0x44);
    const __m512i low_23 = _mm512_shuffle_i32x4(from[2], from[3], 0x44);
    to[0] = _mm512_shuffle_i32x4(low_01, low_23, 0x88);
    to[stride] = _mm512_shuffle_i32x4(low_01, low_23, 0xdd);
    if (n == 4) {
        const __m512i high_01 = _mm512_shuffle_i32x4(from[0], from[1], 0xee);
        const __m512i high_23 = _mm512_shuffle_i32x4(from[2], from[3], 0xee);
        to[2 * stride] = _mm512_shuffle_i32x4(high_01, high_23, 0x88);
        to[3 * stride] = _mm512_shuffle_i32x4(high_01, high_23, 0xdd);
    }
}

/* ---- Floats ---- */

/* Turns n_runs floats (8 or 16) of each of eight rows, to a register for each pair of runs. */
MOE_INLINE void turn_runs(const __m512 rows[TURNED_HALF], uint32_t n_runs, __m512 *pairs)
{
    __m512i low[4], high[4], turned[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        low[i] = _mm512_castps_si512(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]));
        high[i] = _mm512_castps_si512(_mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
    }
    turn_quarters(low, &turned[0], 2, (int)n_runs / 4);
    turn_quarters(high, &turned[1], 2, (int)n_runs / 4);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n_runs / 2; i++) {
        pairs[i] = _mm512_castsi512_ps(turned[i]);
    }
}

/* Finds the scales of a group of eight weight rows, and their points if the type has points. For
 * such types the code for a row is long, so the loop over rows is not unrolled. */
MOE_INLINE void turn_floats(moe_dtype type, const uint8_t *const *groups, group_points *points,
                            turned_scales *turned)
{
    const quant_type t = quant_type_of(type);
    __m512 scales[TURNED_HALF], mins[TURNED_HALF];
    if (type_has_points(type)) {
#pragma GCC unroll 1
        for (uint32_t i = 0; i < TURNED_HALF; i++) {
            const group_state state = begin_group(type, groups[i]);
            scales[i] = state.scales;
            points[i] = state.points;
        }
    } else {
#pragma GCC unroll 8
        for (uint32_t i = 0; i < TURNED_HALF; i++) {
            const group_state state = begin_group(type, groups[i]);
            scales[i] = state.scales;
            mins[i] = state.mins;
        }
    }
    turn_runs(scales, MOE_GROUP / t.run, turned->scales);
    if (t.has_mins) {
        turn_runs(mins, MOE_GROUP / t.run, turned->mins);
    }
}

/* ---- Integers ---- */

/* Whether a group has integers of one byte. */
MOE_INLINE int type_has_integers(moe_dtype type)
{
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
    case MOE_DTYPE_Q3_K:
    case MOE_DTYPE_Q4_K:
    case MOE_DTYPE_Q5_K:
    case MOE_DTYPE_Q6_K:
    case MOE_DTYPE_IQ4_XS:
        return 1;
    default:
        return 0;
    }
}

/* Integers by run: sixteen scales, or eight scales. In Q4_K and Q5_K eight minima follow the eight
 * scales; Q2_K has its minima in *mins. */
MOE_INLINE __m128i integers_of(moe_dtype type, const uint8_t *group, __m128i *mins)
{
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
        return packed_scales_q2_k((const moe_block_q2_k *)group, mins);
    case MOE_DTYPE_Q3_K:
        return scales_q3_k((const moe_block_q3_k *)group);
    case MOE_DTYPE_Q6_K:
        return packed_scales_q6_k((const moe_block_q6_k *)group);
    case MOE_DTYPE_IQ4_XS:
        return _mm256_cvtepi32_epi8(packed_scales_iq4_xs((const moe_block_iq4_xs *)group));
    default:
        return packed_scales_q4_k(_mm_loadu_si128((const __m128i *)group));
    }
}

/* The offset of a group's factor for scales, or, with of_mins, for minima. */
MOE_INLINE size_t factor_at(moe_dtype type, int of_mins)
{
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
        return of_mins ? offsetof(moe_block_q2_k, dmin) : offsetof(moe_block_q2_k, d);
    case MOE_DTYPE_Q3_K:
        return offsetof(moe_block_q3_k, d);
    case MOE_DTYPE_Q6_K:
        return offsetof(moe_block_q6_k, d);
    default: /* Q4_K, Q5_K and IQ4_XS begin with d */
        return of_mins ? offsetof(moe_block_q4_k, dmin) : 0;
    }
}

MOE_INLINE short word_of(const uint8_t *bytes)
{
    short word;
    memcpy(&word, bytes, 2);
    return word;
}

/* The factors of eight rows times `unit`, each twice, in the order of the turned scales. */
MOE_INLINE __m512 turned_factors(const uint8_t *const *groups, size_t at, float unit)
{
    const __m128i halves =
        _mm_setr_epi16(word_of(groups[0] + at), word_of(groups[1] + at), word_of(groups[2] + at),
                       word_of(groups[3] + at), word_of(groups[4] + at), word_of(groups[5] + at),
                       word_of(groups[6] + at), word_of(groups[7] + at));
    const __m512i order = _mm512_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7);
    const __m512 factors =
        _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_cvtph_ps(halves)));
    return _mm512_mul_ps(factors, _mm512_set1_ps(unit));
}

/* Joins every second row (0, 2, 4, 6 or 1, 3, 5, 7), one in each quarter. */
MOE_INLINE __m512i four_rows(const __m128i *rows)
{
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(rows[0]), rows[2], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(rows[4]), rows[6], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Multiplies scales with the factors. Each quarter of `bytes` has eight runs of two rows, ordered
 * by run and then by row. A byte is made the highest byte of a word, so that the word is 2^24 times
 * the byte, with its sign. */
MOE_INLINE void scale_runs(__m512i bytes, __m512 factors, __m512 *pairs)
{
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
        const char b = (char)(4 * p);
        const __m512i order =
            _mm512_broadcast_i32x4(_mm_setr_epi8(-1, -1, -1, b, -1, -1, -1, (char)(b + 1), -1, -1,
                                                 -1, (char)(b + 2), -1, -1, -1, (char)(b + 3)));
        pairs[p] = _mm512_mul_ps(factors, _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes, order)));
    }
}

/* The factor that makes up for a byte being the highest of a word. In this range, multiplying by a
 * power of two does not change how a product of floats rounds. */
#define TOP_BYTE 0x1p-24f

MOE_INLINE void turn_integers(moe_dtype type, const uint8_t *const *groups, turned_scales *turned)
{
    const quant_type t = quant_type_of(type);
    const __m512 factors = turned_factors(groups, factor_at(type, 0), TOP_BYTE);
    __m128i rows[TURNED_HALF], mins[TURNED_HALF];
#pragma GCC unroll 8
    for (int i = 0; i < TURNED_HALF; i++) {
        rows[i] = integers_of(type, groups[i], &mins[i]);
    }
    const __m512i even = four_rows(rows), odd = four_rows(rows + 1);
    const __m512i high = _mm512_unpackhi_epi8(even, odd);
    scale_runs(_mm512_unpacklo_epi8(even, odd), factors, turned->scales);
    if (t.run == 16) {
        scale_runs(high, factors, turned->scales + 4);
    }
    if (!t.has_mins) {
        return;
    }
    const __m512 min_factors = turned_factors(groups, factor_at(type, 1), -TOP_BYTE);
    if (t.run == 32) {
        scale_runs(high, min_factors, turned->mins);
        return;
    }
    const __m512i even_mins = four_rows(mins), odd_mins = four_rows(mins + 1);
    scale_runs(_mm512_unpacklo_epi8(even_mins, odd_mins), min_factors, turned->mins);
    scale_runs(_mm512_unpackhi_epi8(even_mins, odd_mins), min_factors, turned->mins + 4);
}

MOE_INLINE void turn_scales(moe_dtype type, const uint8_t *const *groups, group_points *points,
                            turned_scales *turned)
{
    if (type_has_integers(type)) {
        turn_integers(type, groups, turned);
    } else {
        turn_floats(type, groups, points, turned);
    }
}

#endif
