/* SPDX-License-Identifier: MIT */
/* Unpacks groups of 256 elements with AVX2: the scale and minimum of each run (16 or 32 elements
 * that share them), and 32 codes at a time.
 *
 * Codes are unsigned: the value plus the type's offset. Without VNNI, products of unsigned codes
 * that use all 256 values may saturate. So without VNNI, types with offset 128 give the signed
 * values themselves ("is_signed"). */
#ifndef MOE_X86_QUANT_UNPACK_AVX2_H
#define MOE_X86_QUANT_UNPACK_AVX2_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/quant_fields_avx2.h"
#include "cpu/x86/quant_points_avx2.h"
#include "cpu/x86/quant_rows_x86.h"
#include "cpu/x86/quant_scales_x86.h"
#include "cpu/x86/quant_shifted_avx2.h"

#include <immintrin.h>

/* Scales and minima of runs 0..7 and 8..15 of a group. For types with runs of 32 the second half is
 * not set; for types without minima mins is not set. */
typedef struct group_scales {
    __m256 scales[2];
    __m256 mins[2];
} group_scales;

/* ---- Scales and minima ---- */

MOE_INLINE float one_half(const uint16_t *half)
{
    return _cvtsh_ss(*half);
}

/* d * (float)integer, for eight integers. */
MOE_INLINE __m256 scaled(float d, __m256i integers)
{
    return _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(integers));
}

MOE_INLINE void scaled_epi8(__m256 out[2], float d, __m128i integers)
{
    out[0] = scaled(d, _mm256_cvtepi8_epi32(integers));
    out[1] = scaled(d, _mm256_cvtepi8_epi32(_mm_srli_si128(integers, 8)));
}

MOE_INLINE void scales_q4_k(const moe_block_q4_k *block, group_scales *group)
{
    const __m128i integers = packed_scales_q4_k(_mm_loadu_si128((const __m128i *)block));
    const __m128i mins = _mm_srli_si128(integers, 8);
    group->scales[0] = scaled(one_half(&block->d), _mm256_cvtepu8_epi32(integers));
    group->mins[0] = scaled(-one_half(&block->dmin), _mm256_cvtepu8_epi32(mins));
}

MOE_INLINE void scales_q2_k(const moe_block_q2_k *block, group_scales *group)
{
    __m128i mins;
    const __m128i scales = packed_scales_q2_k(block, &mins);
    scaled_epi8(group->scales, one_half(&block->d), scales);
    scaled_epi8(group->mins, -one_half(&block->dmin), mins);
}

MOE_INLINE void scales_q3_k(const moe_block_q3_k *block, group_scales *group)
{
    __m128i pairs;
    const __m128i low = packed_scales_q3_k(block, &pairs);
    pairs = _mm_and_si128(_mm_srlv_epi32(pairs, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    scaled_epi8(group->scales, one_half(&block->d),
                join_scales_q3_k(low, _mm_slli_epi16(pairs, 4)));
}

MOE_INLINE short half_at(const uint8_t *first, size_t stride, uint32_t b)
{
    return (short)*(const uint16_t *)(first + b * stride);
}

/* Loads a half-precision float from each of eight blocks, `stride` apart. */
MOE_INLINE __m256 eight_halves(const uint16_t *half, size_t stride)
{
    const uint8_t *first = (const uint8_t *)half;
    return _mm256_cvtph_ps(_mm_setr_epi16(half_at(first, stride, 0), half_at(first, stride, 1),
                                          half_at(first, stride, 2), half_at(first, stride, 3),
                                          half_at(first, stride, 4), half_at(first, stride, 5),
                                          half_at(first, stride, 6), half_at(first, stride, 7)));
}

/* moe_e8m0_half_bits() of eight blocks. */
MOE_INLINE __m256 eight_e8m0(const moe_block_mxfp4 *block)
{
    __m128i bytes = _mm_cvtsi32_si128(block[0].e);
    bytes = _mm_insert_epi8(bytes, block[1].e, 1);
    bytes = _mm_insert_epi8(bytes, block[2].e, 2);
    bytes = _mm_insert_epi8(bytes, block[3].e, 3);
    bytes = _mm_insert_epi8(bytes, block[4].e, 4);
    bytes = _mm_insert_epi8(bytes, block[5].e, 5);
    bytes = _mm_insert_epi8(bytes, block[6].e, 6);
    bytes = _mm_insert_epi8(bytes, block[7].e, 7);
    return eight_e8m0_halves(_mm256_cvtepu8_epi32(bytes));
}

MOE_INLINE void scales_iq1_m(const moe_block_iq1_m *block, group_scales *group)
{
    uint64_t scales;
    memcpy(&scales, block->scales, sizeof scales);
    odd_scales_16(group->scales, _cvtsh_ss(half_of_iq1_m(scales)) * 0.125f,
                  triples_of_iq1_m(scales));
}

/* Blocks of all these types except IQ1_M begin with d. */
MOE_INLINE group_scales scales_of_points(moe_dtype type, const uint8_t *block)
{
    const float d = one_half((const uint16_t *)block);
    __m128i qh;
    group_scales group;
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_XXS:
        group.scales[0] = odd_scales(
            d * 0.125f, _mm256_srli_epi32(words_of_iq2_xxs((const moe_block_iq2_xxs *)block), 28));
        break;
    case MOE_DTYPE_IQ2_XS:
        odd_scales_16(group.scales, d * 0.125f,
                      nibbles_of_8(((const moe_block_iq2_xs *)block)->scales));
        break;
    case MOE_DTYPE_IQ2_S:
        odd_scales_16(group.scales, d * 0.125f,
                      nibbles_of_8(((const moe_block_iq2_s *)block)->scales));
        break;
    case MOE_DTYPE_IQ3_XXS:
        group.scales[0] = odd_scales(
            d * 0.25f,
            _mm256_srli_epi32(
                _mm256_loadu_si256((const __m256i *)((const moe_block_iq3_xxs *)block)->signs),
                28));
        break;
    case MOE_DTYPE_IQ3_S:
        group.scales[0] = odd_scales(d, nibbles_of_4(((const moe_block_iq3_s *)block)->scales));
        break;
    case MOE_DTYPE_IQ1_S:
        qh = _mm_loadu_si128((const __m128i *)((const moe_block_iq1_s *)block)->qh);
        qh = _mm_and_si128(_mm_srli_epi16(qh, 12), _mm_set1_epi16(7));
        group.scales[0] = odd_scales(d * 0.125f, _mm256_cvtepu16_epi32(qh));
        break;
    default:
        scales_iq1_m((const moe_block_iq1_m *)block, &group);
    }
    return group;
}

/* The scales and minima of a group: eight blocks of 32, or one block of 256. */
MOE_INLINE group_scales scales_of_group(moe_dtype type, const uint8_t *blocks)
{
    const moe_block_q4_1 *q4_1 = (const moe_block_q4_1 *)blocks; /* all but MXFP4 begin so */
    const moe_block_q6_k *q6 = (const moe_block_q6_k *)blocks;
    const moe_block_iq4_xs *iq4 = (const moe_block_iq4_xs *)blocks;
    const quant_type t = quant_type_of(type);
    group_scales group;
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
        scales_q2_k((const moe_block_q2_k *)blocks, &group);
        break;
    case MOE_DTYPE_Q3_K:
        scales_q3_k((const moe_block_q3_k *)blocks, &group);
        break;
    case MOE_DTYPE_Q4_K:
    case MOE_DTYPE_Q5_K:
        scales_q4_k((const moe_block_q4_k *)blocks, &group);
        break;
    case MOE_DTYPE_Q6_K:
        scaled_epi8(group.scales, one_half(&q6->d), packed_scales_q6_k(q6));
        break;
    case MOE_DTYPE_IQ4_XS:
        group.scales[0] = scaled(one_half(&iq4->d), packed_scales_iq4_xs(iq4));
        break;
    case MOE_DTYPE_MXFP4:
        group.scales[0] = eight_e8m0((const moe_block_mxfp4 *)blocks);
        break;
    case MOE_DTYPE_IQ2_XXS:
    case MOE_DTYPE_IQ2_XS:
    case MOE_DTYPE_IQ2_S:
    case MOE_DTYPE_IQ3_XXS:
    case MOE_DTYPE_IQ3_S:
    case MOE_DTYPE_IQ1_S:
    case MOE_DTYPE_IQ1_M:
        return scales_of_points(type, blocks);
    case MOE_DTYPE_TQ1_0:
        group.scales[0] = _mm256_set1_ps(one_half(&((const moe_block_tq1_0 *)blocks)->d));
        break;
    case MOE_DTYPE_TQ2_0:
        group.scales[0] = _mm256_set1_ps(one_half(&((const moe_block_tq2_0 *)blocks)->d));
        break;
    case MOE_DTYPE_NVFP4:
        scales_nvfp4(blocks, group.scales);
        break;
    case MOE_DTYPE_IQ2_K:
    case MOE_DTYPE_IQ3_K:
    case MOE_DTYPE_IQ4_K:
    case MOE_DTYPE_IQ5_K:
    case MOE_DTYPE_IQ6_K: /* all begin with d */
        scaled_epi8(group.scales, one_half(&q4_1->d), scales_of_shifted(type, blocks));
        break;
    case MOE_DTYPE_IQ2_KS:
    case MOE_DTYPE_IQ3_KS:
    case MOE_DTYPE_IQ4_KS:
    case MOE_DTYPE_IQ4_KSS:
    case MOE_DTYPE_IQ5_KS:
        group.scales[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales_of_shifted(type, blocks)));
        break;
    default:
        group.scales[0] = eight_halves(&q4_1->d, t.block_bytes);
        if (t.has_mins) {
            group.mins[0] = eight_halves(&q4_1->m, t.block_bytes);
        }
        break;
    }
    return group;
}

/* ---- Codes ---- */

MOE_INLINE __m256i add_fifth_bits(__m256i codes, const uint8_t *qh)
{
    const __m256i set = bytes_of_bits(word_at(qh));
    return _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

MOE_INLINE __m256i mxfp4_codes(__m256i nibbles)
{
    const __m128i codes = _mm_add_epi8(_mm_setr_epi8(MOE_MXFP4_CODES), _mm_set1_epi8(MXFP4_OFFSET));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), nibbles);
}

/* Unpacks elements 32e .. 32e + 31 of a block of 256. */
MOE_INLINE __m256i codes_of_256(moe_dtype type, const uint8_t *group, int e, int is_signed)
{
    const moe_block_q2_k *q2 = (const moe_block_q2_k *)group;
    const moe_block_q3_k *q3 = (const moe_block_q3_k *)group;
    const moe_block_q4_k *q4 = (const moe_block_q4_k *)group;
    const moe_block_q5_k *q5 = (const moe_block_q5_k *)group;
    const moe_block_q6_k *q6 = (const moe_block_q6_k *)group;
    const moe_block_iq4_xs *iq4 = (const moe_block_iq4_xs *)group;
    const int pair = 2 * (e % 4); /* the bit at which these elements' bit pairs begin in a byte */
    __m256i low;
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q2_K:
        return field(load_32(q2->qs + 32 * (e / 4)), pair, 0, 3);
    case MOE_DTYPE_Q3_K:
        low = field(load_32(q3->qs + 32 * (e / 4)), pair, 0, 3);
        return _mm256_or_si256(low, field(load_32(q3->hmask), e, 2, 4));
    case MOE_DTYPE_Q4_K:
        return field(load_32(q4->qs + 32 * (e / 2)), 4 * (e % 2), 0, 15);
    case MOE_DTYPE_Q5_K:
        low = field(load_32(q5->qs + 32 * (e / 2)), 4 * (e % 2), 0, 15);
        return _mm256_or_si256(low, field(load_32(q5->qh), e, 4, 16));
    case MOE_DTYPE_Q6_K:
        low = field(load_32(q6->ql + 64 * (e / 4) + 32 * (e % 2)), 4 * (e / 2 % 2), 0, 15);
        return _mm256_or_si256(low, field(load_32(q6->qh + 32 * (e / 4)), pair, 4, 0x30));
    case MOE_DTYPE_IQ2_XXS:
        return codes_iq2_xxs((const moe_block_iq2_xxs *)group, e);
    case MOE_DTYPE_IQ2_XS:
        return codes_iq2_xs((const moe_block_iq2_xs *)group, e);
    case MOE_DTYPE_IQ2_S:
        return codes_iq2_s((const moe_block_iq2_s *)group, e);
    case MOE_DTYPE_IQ3_XXS:
        return codes_iq3_xxs((const moe_block_iq3_xxs *)group, e);
    case MOE_DTYPE_IQ3_S:
        return codes_iq3_s((const moe_block_iq3_s *)group, e);
    case MOE_DTYPE_IQ1_S:
        return codes_iq1_s((const moe_block_iq1_s *)group, e);
    case MOE_DTYPE_IQ1_M:
        return codes_iq1_m((const moe_block_iq1_m *)group, e);
    case MOE_DTYPE_TQ1_0:
        return codes_tq1_0((const moe_block_tq1_0 *)group, e);
    case MOE_DTYPE_TQ2_0:
        return field(load_32(((const moe_block_tq2_0 *)group)->qs + 32 * (e / 4)), pair, 0, 3);
    case MOE_DTYPE_IQ4_XS:
        return iq4_codes(nibbles_of_16(iq4->qs + 16 * e), is_signed);
    default:
        return codes_of_shifted(type, group, e, is_signed);
    }
}

MOE_INLINE __m256i codes_of_32(moe_dtype type, const uint8_t *block, int is_signed)
{
    const moe_block_q5_0 *q5_0 = (const moe_block_q5_0 *)block;
    const moe_block_q5_1 *q5_1 = (const moe_block_q5_1 *)block;
    const moe_block_q8_0 *q8_0 = (const moe_block_q8_0 *)block;
    switch (type_of_file(type)) {
    case MOE_DTYPE_Q4_0:
        return nibbles_of_16(((const moe_block_q4_0 *)block)->qs);
    case MOE_DTYPE_IQ4_NL:
        return iq4_codes(nibbles_of_16(((const moe_block_q4_0 *)block)->qs), is_signed);
    case MOE_DTYPE_Q4_1:
        return nibbles_of_16(((const moe_block_q4_1 *)block)->qs);
    case MOE_DTYPE_Q5_0:
        return add_fifth_bits(nibbles_of_16(q5_0->qs), q5_0->qh);
    case MOE_DTYPE_Q5_1:
        return add_fifth_bits(nibbles_of_16(q5_1->qs), q5_1->qh);
    case MOE_DTYPE_MXFP4:
        return mxfp4_codes(nibbles_of_16(((const moe_block_mxfp4 *)block)->qs));
    default: /* Q8_0 */
        return _mm256_xor_si256(load_32((const uint8_t *)q8_0->qs),
                                _mm256_set1_epi8(is_signed ? 0 : (char)0x80));
    }
}

/* Unpacks elements 32e .. 32e + 31 of a group. */
MOE_INLINE __m256i codes_of_group(moe_dtype type, const uint8_t *group, int e, int is_signed)
{
    const quant_type t = quant_type_of(type);
    if (t.block_elems == MOE_GROUP) {
        return codes_of_256(type, group, e, is_signed);
    }
    if (type == MOE_DTYPE_NVFP4) {
        return mxfp4_codes(nibbles_nvfp4((const moe_block_nvfp4 *)group + e / 2, e % 2));
    }
    return codes_of_32(type, group + (size_t)e * t.block_bytes, is_signed);
}

#endif
