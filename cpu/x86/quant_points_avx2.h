/* SPDX-License-Identifier: MIT */
/* Unpacks types with codebooks, the ternary types and NVFP4 with AVX2, 32 codes at a time. An entry
 * of a codebook, a point, has the codes of four or eight weights. Points are loaded from tables of
 * bytes (codebooks.h). */
#ifndef MOE_X86_QUANT_POINTS_AVX2_H
#define MOE_X86_QUANT_POINTS_AVX2_H

#include "cpu/kernels/block_formats.h"
#include "cpu/kernels/codebooks.h"
#include "cpu/x86/quant_types.h"

#include <immintrin.h>

/* ---- Scales: integers s that mean (2s + 1) times d ---- */

MOE_INLINE __m256 odd_scales(float d, __m256i s)
{
    const __m256i odd = _mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(odd));
}

/* Sixteen such scales, from bytes. */
MOE_INLINE void odd_scales_16(__m256 out[2], float d, __m128i s)
{
    out[0] = odd_scales(d, _mm256_cvtepu8_epi32(s));
    out[1] = odd_scales(d, _mm256_cvtepu8_epi32(_mm_srli_si128(s, 8)));
}

/* The sixteen nibbles of eight bytes, the low one of each byte first. */
MOE_INLINE __m128i nibbles_of_8(const uint8_t *bytes)
{
    const __m128i both = _mm_loadl_epi64((const __m128i *)bytes);
    const __m128i nibbles = _mm_unpacklo_epi8(both, _mm_srli_epi16(both, 4));
    return _mm_and_si128(nibbles, _mm_set1_epi8(15));
}

/* Loads the words behind the points; their upper four bits are scales. */
MOE_INLINE __m256i words_of_iq2_xxs(const moe_block_iq2_xxs *block)
{
    const __m256 low = _mm256_loadu_ps((const float *)(const void *)block->part);
    const __m256 high = _mm256_loadu_ps((const float *)(const void *)(block->part + 4));
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd));
    return _mm256_permute4x64_epi64(odd, 0xd8);
}

MOE_INLINE __m256i nibbles_of_4(const uint8_t *bytes)
{
    uint32_t nibbles;
    memcpy(&nibbles, bytes, sizeof nibbles);
    const __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32((int)nibbles),
                                        _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_and_si256(s, _mm256_set1_epi32(15));
}

/* The four scales of three bits in each of four words. */
MOE_INLINE __m128i triples_of_iq1_m(uint64_t scales)
{
    const __m256i words = _mm256_cvtepu16_epi64(_mm_cvtsi64_si128((long long)scales));
    __m256i triples = _mm256_and_si256(words, _mm256_set1_epi64x(7));
#pragma GCC unroll 3
    for (int i = 1; i < 4; i++) {
        const __m256i moved = _mm256_slli_epi64(words, 5 * i);
        triples =
            _mm256_or_si256(triples, _mm256_and_si256(moved, _mm256_set1_epi64x(7LL << 8 * i)));
    }
    const __m256i low =
        _mm256_permutevar8x32_epi32(triples, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
    return _mm256_castsi256_si128(low);
}

/* Joins the bits of d, which are the upper four bits of four words. */
MOE_INLINE uint16_t half_of_iq1_m(uint64_t scales)
{
    return (uint16_t)((scales >> 12 & 0xf) | (scales >> 24 & 0xf0) | (scales >> 36 & 0xf00) |
                      (scales >> 48 & 0xf000));
}

/* moe_ue4m3_half() of four blocks, times 128. */
MOE_INLINE void scales_nvfp4(const uint8_t *group, __m256 out[2])
{
    int32_t d[4];
#pragma GCC unroll 4
    for (size_t b = 0; b < 4; b++) {
        memcpy(&d[b], group + b * sizeof(moe_block_nvfp4), sizeof d[b]);
    }
    const __m128i bytes = _mm_setr_epi32(d[0], d[1], d[2], d[3]);
    const __m128i no_number = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7f));
    const __m128i bits = _mm_andnot_si128(no_number, _mm_and_si128(bytes, _mm_set1_epi8(0x7f)));
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bits), 7);
    const __m256 factor = _mm256_set1_ps(128);
    out[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor);
    out[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor);
}

/* ---- Codes ---- */

/* Expands 32 bits into bytes: all ones where the bit is set, else 0. */
MOE_INLINE __m256i bytes_of_bits(uint32_t bits)
{
    const __m256i spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32((int)bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
}

/* offset + magnitude, or offset - magnitude where a sign bit is set. */
MOE_INLINE __m256i signed_codes(__m256i magnitudes, uint32_t signs, char offset)
{
    const __m256i negative = bytes_of_bits(signs);
    return _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative),
                           _mm256_sub_epi8(negative, _mm256_set1_epi8(offset)));
}

MOE_INLINE uint32_t word_at(const uint8_t *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

MOE_INLINE __m256i four_points(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return _mm256_setr_epi64x((long long)a, (long long)b, (long long)c, (long long)d);
}

MOE_INLINE __m256i codes_iq2_xxs(const moe_block_iq2_xxs *block, int e)
{
    const uint8_t *qs = block->part[e].qs;
    const uint64_t *book = moe_iq2_xxs_bytes;
    return signed_codes(four_points(book[qs[0]], book[qs[1]], book[qs[2]], book[qs[3]]),
                        moe_even_signs(word_at(block->part[e].signs)), 64);
}

/* Loads four words, each with nine bits of index and seven signs, as one number of 64 bits. If a
 * compiler spilt four words of 16 bits to memory and loaded them as 64 bits, each load would stall.
 */
MOE_INLINE __m256i codes_iq2_xs(const moe_block_iq2_xs *block, int e)
{
    uint64_t w;
    memcpy(&w, block->qs + 4 * e, sizeof w);
    const uint64_t *book = moe_iq2_xs_bytes;
    uint64_t signs = w >> 9 & 0x007f007f007f007f;
    signs = (signs | signs >> 8) & 0x0000ffff0000ffff;
    return signed_codes(
        four_points(book[w & 511], book[w >> 16 & 511], book[w >> 32 & 511], book[w >> 48 & 511]),
        moe_with_parity((uint32_t)(signs | signs >> 16)), 64);
}

MOE_INLINE __m256i codes_iq2_s(const moe_block_iq2_s *block, int e)
{
    const uint8_t *qs = block->qs + 4 * e;
    const uint32_t qh = block->qh[e];
    const uint64_t *book = moe_iq2_s_bytes;
    return signed_codes(
        four_points(book[qs[0] | (qh << 8 & 0x300)], book[qs[1] | (qh << 6 & 0x300)],
                    book[qs[2] | (qh << 4 & 0x300)], book[qs[3] | (qh << 2 & 0x300)]),
        word_at(block->signs + 4 * e), 64);
}

/* Joins two points of four elements. */
MOE_INLINE uint64_t two_points(const uint32_t *book, uint32_t low, uint32_t high)
{
    return book[low] | (uint64_t)book[high] << 32;
}

MOE_INLINE __m256i codes_iq3_xxs(const moe_block_iq3_xxs *block, int e)
{
    const uint8_t *qs = block->qs + 8 * e;
    const uint32_t *book = moe_iq3_xxs_bytes;
    return signed_codes(four_points(two_points(book, qs[0], qs[1]), two_points(book, qs[2], qs[3]),
                                    two_points(book, qs[4], qs[5]), two_points(book, qs[6], qs[7])),
                        moe_even_signs(word_at(block->signs[e])), 64);
}

MOE_INLINE __m256i codes_iq3_s(const moe_block_iq3_s *block, int e)
{
    const uint8_t *qs = block->qs + 8 * e;
    const uint32_t qh = block->qh[e];
    uint64_t points[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        points[i] = two_points(moe_iq3_s_bytes, qs[2 * i] | (qh << (8 - 2 * i) & 256),
                               qs[2 * i + 1] | (qh << (7 - 2 * i) & 256));
    }
    return signed_codes(four_points(points[0], points[1], points[2], points[3]),
                        word_at(block->signs + 4 * e), 16);
}

/* A code is eight times the value, plus 16. The tables' bytes are eight times the value, plus 8. */
MOE_INLINE __m256i codes_iq1_s(const moe_block_iq1_s *block, int e)
{
    const uint8_t *qs = block->qs + 4 * e;
    const uint32_t qh = block->qh[e];
    const uint64_t *book = moe_iq1_bytes;
    const __m256i points =
        four_points(book[qs[0] | (qh << 8 & 0x700)], book[qs[1] | (qh << 5 & 0x700)],
                    book[qs[2] | (qh << 2 & 0x700)], book[qs[3] | (qh >> 1 & 0x700)]);
    return _mm256_add_epi8(points, _mm256_set1_epi8((char)(qh >> 15 != 0 ? 8 - 1 : 8 + 1)));
}

MOE_INLINE __m256i codes_iq1_m(const moe_block_iq1_m *block, int e)
{
    const uint8_t *qs = block->qs + 4 * e;
    const uint32_t qh = block->qh[2 * e] | (uint32_t)block->qh[2 * e + 1] << 8;
    const uint64_t *book = moe_iq1_bytes;
    uint64_t points[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const uint32_t nibble = qh >> 4 * i & 15;
        const uint64_t ones = 0x0101010101010101;
        points[i] = book[qs[i] | (nibble & 7) << 8] + ones * ((nibble & 8) != 0 ? 8 - 1 : 8 + 1);
    }
    return four_points(points[0], points[1], points[2], points[3]);
}

/* Multiplies bytes by 3^n, modulo 256. */
MOE_INLINE __m256i times_power_of_3(__m256i bytes, int n)
{
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        bytes = _mm256_add_epi8(bytes, _mm256_add_epi8(bytes, bytes));
    }
    return bytes;
}

MOE_INLINE __m128i half_of_power(__m128i bytes, int n)
{
    return _mm256_castsi256_si128(times_power_of_3(_mm256_castsi128_si256(bytes), n));
}

/* See block_unpack_ternary.c. */
MOE_INLINE __m256i codes_tq1_0(const moe_block_tq1_0 *block, int e)
{
    const __m128i rest = _mm_loadu_si128((const __m128i *)(block->qs + 32));
    __m256i bytes;
    if (e < 5) { /* digit e of 32 bytes */
        bytes = times_power_of_3(_mm256_loadu_si256((const __m256i *)block->qs), e);
    } else if (e < 7) { /* digits 0 and 1, 2 and 3 of 16 */
        bytes = _mm256_set_m128i(half_of_power(rest, 2 * (e - 5) + 1),
                                 half_of_power(rest, 2 * (e - 5)));
    } else { /* digit 4 of 16, digits 0 to 3 of four */
        const __m128i last = _mm_set1_epi32((int)word_at(block->qh));
        __m128i digits = _mm_blend_epi32(last, half_of_power(last, 1), 2);
        digits = _mm_blend_epi32(digits, half_of_power(last, 2), 4);
        digits = _mm_blend_epi32(digits, half_of_power(last, 3), 8);
        bytes = _mm256_set_m128i(digits, half_of_power(rest, 4));
    }
    /* bytes * 3 >> 8 is 0 for bytes below 86, 1 below 171, else 2. */
    const __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8(86)), bytes);
    const __m256i two =
        _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8((char)171)), bytes);
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two));
}

/* Half h of a block of 64: the low nibbles of eight bytes, then their high nibbles; then the same
 * of the next eight bytes. */
MOE_INLINE __m256i nibbles_nvfp4(const moe_block_nvfp4 *block, int h)
{
    const __m256i qs =
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(block->qs + 16 * h)));
    const __m256i twice = _mm256_permute4x64_epi64(qs, 0x50);
    return _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4)),
                            _mm256_set1_epi8(15));
}

#endif
