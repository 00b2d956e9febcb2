/* SPDX-License-Identifier: MIT */
/* Unpacks blocks with AVX-512, a group of 256 elements at a time: begin_group() gives the scale and
 * the minimum of each run (the 16 or 32 elements that share them), and codes_of_chunk() gives 64
 * unsigned codes. */
#ifndef MOE_X86_QUANT_UNPACK_AVX512_H
#define MOE_X86_QUANT_UNPACK_AVX512_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/quant_fields_avx512.h"
#include "cpu/x86/quant_points_avx512.h"
#include "cpu/x86/quant_rows_x86.h"
#include "cpu/x86/quant_scales_x86.h"
#include "cpu/x86/quant_shifted_avx512.h"
#include "cpu/x86/quant_ternary_avx512.h"

#include <immintrin.h>

/* Scales and minima of a group's runs: of 16 runs, or of 8 in the lower half (the upper half is
 * unspecified). */
typedef struct group_state {
    __m512 scales;
    __m512 mins;
    group_points points; /* of types with codebooks of points */
} group_state;

MOE_INLINE group_state without_mins(__m512 scales)
{
    group_state state;
    state.scales = scales;
    state.mins = _mm512_setzero_ps();
    return state;
}

/* ---- Scales and words that a group loads once ---- */

/* Where word `word` of block b begins, in words from `base` on. */
MOE_INLINE short word_at(size_t b, size_t stride, size_t word, size_t base)
{
    return (short)((b * stride + 2 * word - base) / 2);
}

/* Loads the first 16-bit word of each of eight blocks, then the second word of each. (With an odd
 * stride, the first word is the aligned word in which the block begins.) The first two words of
 * four blocks lie within 128 bytes, which one permutation can reach. */
MOE_INLINE __m256i first_words(const uint8_t *group, size_t stride)
{
    const size_t s = stride;
    const __m256i low = _mm256_setr_epi16(
        word_at(0, s, 0, 0), word_at(1, s, 0, 0), word_at(2, s, 0, 0), word_at(3, s, 0, 0),
        word_at(4, s, 0, 0), word_at(5, s, 0, 0), word_at(6, s, 0, 0), word_at(7, s, 0, 0),
        word_at(0, s, 1, 0), word_at(1, s, 1, 0), word_at(2, s, 1, 0), word_at(3, s, 1, 0), 0, 0, 0,
        0);
    const __m512i words = _mm512_permutex2var_epi16(
        _mm512_loadu_si512(group), _mm512_castsi256_si512(low), _mm512_loadu_si512(group + 64));
    if (s <= 18) { /* for such strides one permutation reaches all words that are used */
        return _mm512_castsi512_si256(words);
    }
    const size_t base = s < 32 ? 8 * s - 128 : 4 * s;
    const __m256i high = _mm256_setr_epi16(
        0, 0, 0, 0, word_at(4, s, 0, base), word_at(5, s, 0, base), word_at(6, s, 0, base),
        word_at(7, s, 0, base), 0, 0, 0, 0, word_at(4, s, 1, base), word_at(5, s, 1, base),
        word_at(6, s, 1, base), word_at(7, s, 1, base));
    const __m512i rest =
        _mm512_permutex2var_epi16(_mm512_loadu_si512(group + base), _mm512_castsi256_si512(high),
                                  _mm512_loadu_si512(group + base + 64));
    return _mm256_mask_blend_epi16(0xf0f0, _mm512_castsi512_si256(words),
                                   _mm512_castsi512_si256(rest));
}

/* Blocks of 32 that begin with d, or with d and m. */
MOE_INLINE group_state begin_halves(const uint8_t *group, size_t stride)
{
    group_state state;
    state.scales = _mm512_cvtph_ps(first_words(group, stride));
    state.mins = _mm512_castps256_ps512(_mm512_extractf32x8_ps(state.scales, 1));
    return state;
}

/* moe_e8m0_half_bits() of eight blocks. */
MOE_INLINE group_state begin_mxfp4(const uint8_t *group)
{
    const __m128i words = _mm256_castsi256_si128(first_words(group, sizeof(moe_block_mxfp4)));
    const __m128i bytes = _mm_srlv_epi16(words, _mm_setr_epi16(0, 8, 0, 8, 0, 8, 0, 8));
    const __m256i e = _mm256_cvtepu16_epi32(_mm_and_si128(bytes, _mm_set1_epi16(255)));
    return without_mins(_mm512_castps256_ps512(eight_e8m0_halves(e)));
}

/* Q4_K and Q5_K: scales come out in lanes 0..7, minima in 8..15. */
MOE_INLINE group_state begin_scales_k(const uint8_t *block)
{
    const __m128i head = _mm_loadu_si128((const __m128i *)block);
    const __m512i integers = _mm512_cvtepu8_epi32(packed_scales_q4_k(head));
    const __m512 halves = _mm512_castps128_ps512(_mm_cvtph_ps(head));
    const __m512 steps = _mm512_permutexvar_ps(
        _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0), halves);
    group_state state;
    state.scales = _mm512_mul_ps(steps, _mm512_cvtepi32_ps(integers));
    const __m256 mins = _mm512_extractf32x8_ps(state.scales, 1);
    state.mins = _mm512_castps256_ps512(_mm256_xor_ps(mins, _mm256_set1_ps(-0.0f)));
    return state;
}

MOE_INLINE __m512 scaled_epi8(const uint16_t *d, __m128i integers)
{
    return _mm512_mul_ps(broadcast_half(d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(integers)));
}

MOE_INLINE group_state begin_q2_k(const moe_block_q2_k *block)
{
    __m128i mins;
    const __m128i scales = packed_scales_q2_k(block, &mins);
    group_state state;
    state.scales = scaled_epi8(&block->d, scales);
    state.mins = _mm512_xor_ps(scaled_epi8(&block->dmin, mins), _mm512_set1_ps(-0.0f));
    return state;
}

/* Sixteen signed scales. */
MOE_INLINE __m128i scales_q3_k(const moe_block_q3_k *block)
{
    __m128i pairs;
    const __m128i low = packed_scales_q3_k(block, &pairs);
    const __m128i top =
        _mm_and_si128(_mm_rolv_epi32(pairs, _mm_setr_epi32(4, 2, 0, 30)), _mm_set1_epi8(0x30));
    return join_scales_q3_k(low, top);
}

MOE_INLINE group_state begin_iq4_xs(const moe_block_iq4_xs *block)
{
    const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16((short)block->d));
    const __m256 scales = _mm256_mul_ps(d, _mm256_cvtepi32_ps(packed_scales_iq4_xs(block)));
    return without_mins(_mm512_castps256_ps512(scales));
}

MOE_INLINE group_state begin_points(moe_dtype type, const uint8_t *group)
{
    group_state state = without_mins(_mm512_setzero_ps());
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_XXS:
        state.scales = begin_iq2_xxs((const moe_block_iq2_xxs *)group, &state.points);
        break;
    case MOE_DTYPE_IQ2_XS:
        state.scales = begin_iq2_xs((const moe_block_iq2_xs *)group, &state.points);
        break;
    case MOE_DTYPE_IQ2_S:
        state.scales = begin_iq2_s((const moe_block_iq2_s *)group, &state.points);
        break;
    case MOE_DTYPE_IQ3_XXS:
        state.scales = begin_iq3_xxs((const moe_block_iq3_xxs *)group, &state.points);
        break;
    case MOE_DTYPE_IQ3_S:
        state.scales = begin_iq3_s((const moe_block_iq3_s *)group, &state.points);
        break;
    case MOE_DTYPE_IQ1_S:
        state.scales = begin_iq1_s((const moe_block_iq1_s *)group, &state.points);
        break;
    default:
        state.scales = begin_iq1_m((const moe_block_iq1_m *)group, &state.points);
    }
    return state;
}

MOE_INLINE int type_has_points(moe_dtype type)
{
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_XXS:
    case MOE_DTYPE_IQ2_XS:
    case MOE_DTYPE_IQ2_S:
    case MOE_DTYPE_IQ3_XXS:
    case MOE_DTYPE_IQ3_S:
    case MOE_DTYPE_IQ1_S:
    case MOE_DTYPE_IQ1_M:
        return 1;
    default:
        return 0;
    }
}

/* Finds the scales and minima of the group whose first block is at `group`. */
MOE_INLINE group_state begin_group(moe_dtype type, const uint8_t *group)
{
    const moe_block_q6_k *q6 = (const moe_block_q6_k *)group;
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
        return begin_q2_k((const moe_block_q2_k *)group);
    case MOE_DTYPE_Q3_K:
        return without_mins(scaled_epi8(&((const moe_block_q3_k *)group)->d,
                                        scales_q3_k((const moe_block_q3_k *)group)));
    case MOE_DTYPE_Q4_K:
    case MOE_DTYPE_Q5_K:
        return begin_scales_k(group);
    case MOE_DTYPE_Q6_K:
        return without_mins(scaled_epi8(&q6->d, packed_scales_q6_k(q6)));
    case MOE_DTYPE_IQ4_XS:
        return begin_iq4_xs((const moe_block_iq4_xs *)group);
    case MOE_DTYPE_MXFP4:
        return begin_mxfp4(group);
    case MOE_DTYPE_IQ2_XXS:
    case MOE_DTYPE_IQ2_XS:
    case MOE_DTYPE_IQ2_S:
    case MOE_DTYPE_IQ3_XXS:
    case MOE_DTYPE_IQ3_S:
    case MOE_DTYPE_IQ1_S:
    case MOE_DTYPE_IQ1_M:
        return begin_points(type, group);
    case MOE_DTYPE_TQ1_0:
        return without_mins(broadcast_half(&((const moe_block_tq1_0 *)group)->d));
    case MOE_DTYPE_TQ2_0:
        return without_mins(broadcast_half(&((const moe_block_tq2_0 *)group)->d));
    case MOE_DTYPE_NVFP4:
        return without_mins(scales_nvfp4(group));
    case MOE_DTYPE_IQ2_K:
    case MOE_DTYPE_IQ3_K:
    case MOE_DTYPE_IQ4_K:
    case MOE_DTYPE_IQ5_K:
    case MOE_DTYPE_IQ6_K: /* all begin with d */
        return without_mins(scaled_epi8((const uint16_t *)group, scales_of_shifted(type, group)));
    case MOE_DTYPE_IQ2_KS:
    case MOE_DTYPE_IQ3_KS:
    case MOE_DTYPE_IQ4_KS:
    case MOE_DTYPE_IQ4_KSS:
    case MOE_DTYPE_IQ5_KS:
        return without_mins(
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales_of_shifted(type, group))));
    default:
        return begin_halves(group, quant_type_of(type).block_bytes);
    }
}

/* ---- Codes ---- */

MOE_INLINE __m512i codes_q8_0(const moe_block_q8_0 *b0, const moe_block_q8_0 *b1)
{
    const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)b0->qs));
    const __m512i codes = _mm512_inserti64x4(low, _mm256_loadu_si256((const __m256i *)b1->qs), 1);
    return _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
}

MOE_INLINE __m512i codes_q6_k(const moe_block_q6_k *block, int c)
{
    const __m512i nibbles = _mm512_loadu_si512(block->ql + 64 * (c / 2));
    const __m512i low = _mm512_and_si512(c % 2 != 0 ? _mm512_srli_epi16(nibbles, 4) : nibbles,
                                         _mm512_set1_epi8(15));
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(block->qh + 32 * (c / 2)));
    const __m512i rotations = _mm512_inserti64x4(_mm512_set1_epi64(c % 2 != 0 ? 0 : 4),
                                                 _mm256_set1_epi64x(c % 2 != 0 ? 62 : 2), 1);
    const __m512i high = _mm512_rolv_epi64(_mm512_broadcast_i64x4(pairs), rotations);
    /* low | (high & 0x30) */
    return _mm512_ternarylogic_epi64(low, high, _mm512_set1_epi8(0x30), 0xf8);
}

/* The codes of chunk c of a block of 256. */
MOE_INLINE __m512i codes_of_256(moe_dtype type, const uint8_t *group, const group_points *points,
                                int c)
{
    const moe_block_q2_k *q2 = (const moe_block_q2_k *)group;
    const moe_block_q3_k *q3 = (const moe_block_q3_k *)group;
    const moe_block_q4_k *q4 = (const moe_block_q4_k *)group;
    const moe_block_q5_k *q5 = (const moe_block_q5_k *)group;
    const moe_block_iq4_xs *iq4 = (const moe_block_iq4_xs *)group;
    const int pair = 4 * (c % 2); /* the bit at which this chunk's bit pairs begin in a byte */
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
        return fields_of_32(q2->qs + 32 * (c / 2), pair, pair + 2, 3);
    case MOE_DTYPE_Q3_K:
        return add_plane(fields_of_32(q3->qs + 32 * (c / 2), pair, pair + 2, 3), q3->hmask, c, 4);
    case MOE_DTYPE_Q4_K:
        return fields_of_32(q4->qs + 32 * c, 0, 4, 15);
    case MOE_DTYPE_Q5_K:
        return add_plane(fields_of_32(q5->qs + 32 * c, 0, 4, 15), q5->qh, c, 16);
    case MOE_DTYPE_Q6_K:
        return codes_q6_k((const moe_block_q6_k *)group, c);
    case MOE_DTYPE_IQ2_XXS:
    case MOE_DTYPE_IQ2_XS:
        return codes_iq2(points, c);
    case MOE_DTYPE_IQ2_S:
        return codes_iq2_s(points, c);
    case MOE_DTYPE_IQ3_XXS:
        return codes_iq3_xxs(points, c);
    case MOE_DTYPE_IQ3_S:
        return codes_iq3_s(points, c);
    case MOE_DTYPE_IQ1_S:
    case MOE_DTYPE_IQ1_M:
        return codes_iq1(points, c);
    case MOE_DTYPE_TQ1_0:
        return codes_tq1_0((const moe_block_tq1_0 *)group, c);
    case MOE_DTYPE_TQ2_0:
        return fields_of_32(((const moe_block_tq2_0 *)group)->qs + 32 * (c / 2), pair, pair + 2, 3);
    case MOE_DTYPE_IQ4_XS:
        return _mm512_shuffle_epi8(iq4_table(),
                                   nibbles_of_pair(iq4->qs + 32 * c, iq4->qs + 32 * c + 16));
    default:
        return codes_of_shifted(type, group, c);
    }
}

/* The codes of two blocks of 32. */
MOE_INLINE __m512i codes_of_pair(moe_dtype type, const uint8_t *block0, const uint8_t *block1)
{
    const moe_block_q4_0 *a0 = (const moe_block_q4_0 *)block0;
    const moe_block_q4_0 *a1 = (const moe_block_q4_0 *)block1;
    const moe_block_q4_1 *b0 = (const moe_block_q4_1 *)block0;
    const moe_block_q4_1 *b1 = (const moe_block_q4_1 *)block1;
    const moe_block_q5_0 *c0 = (const moe_block_q5_0 *)block0;
    const moe_block_q5_0 *c1 = (const moe_block_q5_0 *)block1;
    const moe_block_q5_1 *d0 = (const moe_block_q5_1 *)block0;
    const moe_block_q5_1 *d1 = (const moe_block_q5_1 *)block1;
    const moe_block_mxfp4 *e0 = (const moe_block_mxfp4 *)block0;
    const moe_block_mxfp4 *e1 = (const moe_block_mxfp4 *)block1;
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q4_0:
        return nibbles_of_pair(a0->qs, a1->qs);
    case MOE_DTYPE_IQ4_NL:
        return _mm512_shuffle_epi8(iq4_table(), nibbles_of_pair(a0->qs, a1->qs));
    case MOE_DTYPE_Q4_1:
        return nibbles_of_pair(b0->qs, b1->qs);
    case MOE_DTYPE_Q5_0:
        return add_fifth_bits(nibbles_of_pair(c0->qs, c1->qs), c0->qh, c1->qh);
    case MOE_DTYPE_Q5_1:
        return add_fifth_bits(nibbles_of_pair(d0->qs, d1->qs), d0->qh, d1->qh);
    case MOE_DTYPE_MXFP4:
        return _mm512_shuffle_epi8(mxfp4_table(), nibbles_of_pair(e0->qs, e1->qs));
    default:
        return codes_q8_0((const moe_block_q8_0 *)block0, (const moe_block_q8_0 *)block1);
    }
}

/* The codes of chunk c of a group; points: from begin_group() for this group. */
MOE_INLINE __m512i codes_of_chunk(moe_dtype type, const uint8_t *group, const group_points *points,
                                  int c)
{
    const quant_type t = quant_type_of(type);
    if (t.block_elems == MOE_GROUP) {
        return codes_of_256(type, group, points, c);
    }
    if (type == MOE_DTYPE_NVFP4) {
        return _mm512_shuffle_epi8(mxfp4_table(),
                                   nibbles_nvfp4(group + (size_t)c * sizeof(moe_block_nvfp4)));
    }
    const uint8_t *block = group + (size_t)c * 2 * t.block_bytes;
    return codes_of_pair(type, block, block + t.block_bytes);
}

#endif
