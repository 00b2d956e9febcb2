/* SPDX-License-Identifier: MIT */
/* Unpacks types with codebooks, with AVX-512. An entry of a codebook, a point, has the codes
 * (coordinates) of four or eight weights. A codebook of up to 512 points is a table of 16-bit words
 * in registers. Permutations look up 32 points at a time; each permutation reaches 64 words. A
 * point is then copied to the words of its coordinates. A shift of each word brings its coordinates
 * to the lowest bits of its bytes, and a byte shuffle turns them into magnitudes. For larger
 * codebooks each point is loaded separately, which takes the same time for any size. */
#ifndef MOE_X86_QUANT_POINTS_AVX512_H
#define MOE_X86_QUANT_POINTS_AVX512_H

#include "cpu/kernels/block_formats.h"
#include "cpu/kernels/codebooks.h"
#include "cpu/x86/always_inline.h"

#include <immintrin.h>

/* The points of a group. There are twice as many points of four as points of eight. */
typedef struct group_points {
    __m512i packed[2];
    uint16_t at[32];   /* for IQ2_S and IQ1: the points' numbers */
    uint64_t signs[4]; /* a bit for each element, set if it is negative */
    __mmask32 minus;   /* IQ1: a bit for each point */
} group_points;

/* A scale of four bits s means (2s + 1) times d. Computes 2s + 1 for eight or sixteen runs. */
MOE_INLINE __m256i odd_8(__m256i s)
{
    return _mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1));
}

MOE_INLINE __m512 scales_of_8(uint16_t d, float factor, __m256i s)
{
    const __m256 step = _mm256_set1_ps(_cvtsh_ss(d) * factor);
    return _mm512_castps256_ps512(_mm256_mul_ps(step, _mm256_cvtepi32_ps(odd_8(s))));
}

MOE_INLINE __m512 scales_of_16(uint16_t d, float factor, __m512i s)
{
    const __m512i odd = _mm512_add_epi32(_mm512_add_epi32(s, s), _mm512_set1_epi32(1));
    return _mm512_mul_ps(_mm512_set1_ps(_cvtsh_ss(d) * factor), _mm512_cvtepi32_ps(odd));
}

/* The sixteen nibbles of eight bytes, the low one of each byte first. */
MOE_INLINE __m512i nibbles_of_8(const uint8_t *bytes)
{
    const __m128i both = _mm_loadl_epi64((const __m128i *)bytes);
    const __m128i nibbles = _mm_unpacklo_epi8(both, _mm_srli_epi16(both, 4));
    return _mm512_cvtepu8_epi32(_mm_and_si128(nibbles, _mm_set1_epi8(15)));
}

/* ---- Signs ---- */

/* Sets the eighth bit so that the number of set bits in a byte is even. */
MOE_INLINE __m256i with_parity(__m256i seven)
{
    const __m256i parity = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i low = _mm256_shuffle_epi8(parity, _mm256_and_si256(seven, mask));
    const __m256i high =
        _mm256_shuffle_epi8(parity, _mm256_and_si256(_mm256_srli_epi16(seven, 4), mask));
    return _mm256_ternarylogic_epi32(seven, low, high, 0xf6); /* seven | (low ^ high) */
}

/* Expands the lower 28 bits of each of eight words, four times seven signs, to four bytes. */
MOE_INLINE __m256i signs_of_words(__m256i words)
{
    __m256i seven = words; /* 0xca: selects by the bits of the mask, or else keeps the old bits */
    seven = _mm256_ternarylogic_epi32(_mm256_set1_epi32(0x0000ff00), _mm256_slli_epi32(words, 1),
                                      seven, 0xca);
    seven = _mm256_ternarylogic_epi32(_mm256_set1_epi32(0x00ff0000), _mm256_slli_epi32(words, 2),
                                      seven, 0xca);
    seven = _mm256_ternarylogic_epi32(_mm256_set1_epi32((int)0xff000000),
                                      _mm256_slli_epi32(words, 3), seven, 0xca);
    return with_parity(_mm256_and_si256(seven, _mm256_set1_epi8(0x7f)));
}

MOE_INLINE void keep_signs(group_points *points, __m256i signs)
{
    memcpy(points->signs, &signs, sizeof points->signs);
}

/* ---- Lookups ---- */

MOE_INLINE __m512i look_up_64(const uint16_t *book, __m512i at)
{
    return _mm512_permutex2var_epi16(_mm512_load_si512(book), at, _mm512_load_si512(book + 32));
}

/* Looks up a book of 256 entries by the lower eight bits of `at`. */
MOE_INLINE __m512i look_up_256(const uint16_t *book, __m512i at)
{
    const __mmask32 bit6 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
    const __mmask32 bit7 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
    const __m512i low =
        _mm512_mask_blend_epi16(bit6, look_up_64(book, at), look_up_64(book + 64, at));
    const __m512i high =
        _mm512_mask_blend_epi16(bit6, look_up_64(book + 128, at), look_up_64(book + 192, at));
    return _mm512_mask_blend_epi16(bit7, low, high);
}

/* Looks up a book of 512 entries by the lower bits of `at`. */
MOE_INLINE __m512i look_up_512(const uint16_t *book, __m512i at)
{
    const __mmask32 bit8 = _mm512_test_epi16_mask(at, _mm512_set1_epi16(256));
    return _mm512_mask_blend_epi16(bit8, look_up_256(book, at), look_up_256(book + 256, at));
}

/* Loads the eight points whose numbers are at points->at + 8 * c. */
MOE_INLINE __m512i load_points(const uint64_t *book, const group_points *points, int c)
{
    const uint16_t *at = points->at + 8 * c;
    __m128i pairs[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m128i first = _mm_loadl_epi64((const __m128i *)&book[at[2 * i]]);
        pairs[i] = _mm_insert_epi64(first, (long long)book[at[2 * i + 1]], 1);
    }
    const __m512i low = _mm512_castsi256_si512(_mm256_set_m128i(pairs[1], pairs[0]));
    return _mm512_inserti64x4(low, _mm256_set_m128i(pairs[3], pairs[2]), 1);
}

/* ---- Coordinates ---- */

/* The permutation that copies each of eight points, from number `first` on, to four words: one word
 * for each pair of its eight coordinates. */
MOE_INLINE __m512i places_of_8(long long first)
{
    const long long k = 0x0001000100010001;
    return _mm512_setr_epi64(k * first, k * (first + 1), k * (first + 2), k * (first + 3),
                             k * (first + 4), k * (first + 5), k * (first + 6), k * (first + 7));
}

MOE_INLINE __m512i places_of_4(int first)
{
    const int k = 0x00010001;
    return _mm512_setr_epi32(k * first, k * (first + 1), k * (first + 2), k * (first + 3),
                             k * (first + 4), k * (first + 5), k * (first + 6), k * (first + 7),
                             k * (first + 8), k * (first + 9), k * (first + 10), k * (first + 11),
                             k * (first + 12), k * (first + 13), k * (first + 14),
                             k * (first + 15));
}

/* The levels of the 64 coordinates of chunk c, from its points of eight. */
MOE_INLINE __m512i levels_of_8(const group_points *points, int c)
{
    const __m512i words = _mm512_permutexvar_epi16(places_of_8(8 * c), points->packed[0]);
    const __m512i shifted =
        _mm512_srlv_epi16(words, _mm512_set1_epi64(0x0006000400020000)); /* by word */
    return _mm512_and_si512(shifted, _mm512_set1_epi8(3));
}

MOE_INLINE __m512i levels_of_4(const group_points *points, int c)
{
    const __m512i words =
        _mm512_permutexvar_epi16(places_of_4(16 * (c % 2)), points->packed[c / 2]);
    const __m512i shifted = _mm512_srlv_epi16(words, _mm512_set1_epi32(0x00030000));
    return _mm512_and_si512(shifted, _mm512_set1_epi8(7));
}

/* offset + magnitude, or offset - magnitude where the sign bit is set. */
MOE_INLINE __m512i signed_codes(__m512i magnitudes, uint64_t signs, char offset)
{
    return _mm512_mask_sub_epi8(magnitudes, signs, _mm512_set1_epi8((char)(2 * offset)),
                                magnitudes);
}

/* ---- Scales and words that a group loads once ---- */

MOE_INLINE __m512 begin_iq2_xxs(const moe_block_iq2_xxs *block, group_points *points)
{
    const __m512i parts = _mm512_loadu_si512(block->part);
    const __m256i words = _mm512_cvtepi64_epi32(_mm512_srli_epi64(parts, 32));
    const __m512i at = _mm512_cvtepu8_epi16(_mm512_cvtepi64_epi32(parts));
    points->packed[0] = look_up_256(moe_iq2_xxs_points, at);
    keep_signs(points, signs_of_words(words));
    return scales_of_8(block->d, 0.125f, _mm256_srli_epi32(words, 28));
}

MOE_INLINE __m512 begin_iq2_xs(const moe_block_iq2_xs *block, group_points *points)
{
    const __m512i at = _mm512_loadu_si512(block->qs);
    points->packed[0] = look_up_512(moe_iq2_xs_points, at);
    keep_signs(points, with_parity(_mm512_cvtepi16_epi8(_mm512_srli_epi16(at, 9))));
    return scales_of_16(block->d, 0.125f, nibbles_of_8(block->scales));
}

/* Joins the numbers of points: their lower bytes are the 32 bytes of qs; the bits of `mask` come
 * from `upper`. */
MOE_INLINE void keep_numbers(group_points *points, const uint8_t *qs, __m512i upper, short mask)
{
    const __m512i low = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)qs));
    const __m512i at = _mm512_ternarylogic_epi32(low, upper, _mm512_set1_epi16(mask), 0xf8);
    memcpy(points->at, &at, sizeof points->at);
}

MOE_INLINE __m512 begin_iq2_s(const moe_block_iq2_s *block, group_points *points)
{
    const __m128i qh =
        _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)block->qh));
    const __m512i spread = _mm512_permutexvar_epi16(places_of_8(0), _mm512_castsi128_si512(qh));
    const __m512i upper = _mm512_srlv_epi16(spread, _mm512_set1_epi64(0x0006000400020000));
    keep_numbers(points, block->qs, upper, 0x0300);
    memcpy(points->signs, block->signs, sizeof points->signs);
    return scales_of_16(block->d, 0.125f, nibbles_of_8(block->scales));
}

MOE_INLINE __m512 begin_iq3_xxs(const moe_block_iq3_xxs *block, group_points *points)
{
    const __m256i words = _mm256_loadu_si256((const __m256i *)block->signs);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256i qs = _mm256_loadu_si256((const __m256i *)block->qs + i);
        points->packed[i] = look_up_256(moe_iq3_xxs_points, _mm512_cvtepu8_epi16(qs));
    }
    keep_signs(points, signs_of_words(words));
    return scales_of_8(block->d, 0.25f, _mm256_srli_epi32(words, 28));
}

MOE_INLINE __m512 begin_iq3_s(const moe_block_iq3_s *block, group_points *points)
{
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m512i at = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)block->qs + i));
        uint32_t qh;
        memcpy(&qh, block->qh + 4 * i, sizeof qh);
        points->packed[i] = _mm512_mask_blend_epi16(qh, look_up_256(moe_iq3_s_points, at),
                                                    look_up_256(moe_iq3_s_points + 256, at));
    }
    memcpy(points->signs, block->signs, sizeof points->signs);
    uint32_t scales;
    memcpy(&scales, block->scales, sizeof scales);
    const __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32((int)scales),
                                        _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return scales_of_8(block->d, 1, _mm256_and_si256(s, _mm256_set1_epi32(15)));
}

MOE_INLINE __m512 begin_iq1_s(const moe_block_iq1_s *block, group_points *points)
{
    const __m128i qh = _mm_loadu_si128((const __m128i *)block->qh);
    const __m512i spread = _mm512_permutexvar_epi16(places_of_8(0), _mm512_castsi128_si512(qh));
    const __m512i upper =
        _mm512_slli_epi16(_mm512_srlv_epi16(spread, _mm512_set1_epi64(0x0009000600030000)), 8);
    keep_numbers(points, block->qs, upper, 0x0700);
    points->minus = _mm512_movepi16_mask(spread);
    const __m256i s = _mm256_cvtepu16_epi32(_mm_srli_epi16(qh, 12));
    return scales_of_8(block->d, 0.125f, _mm256_and_si256(s, _mm256_set1_epi32(7)));
}

/* Joins the bits of d, which are the upper four bits of four words. */
MOE_INLINE uint16_t half_of_iq1_m(uint64_t scales)
{
    return (uint16_t)((scales >> 12 & 0xf) | (scales >> 24 & 0xf0) | (scales >> 36 & 0xf00) |
                      (scales >> 48 & 0xf000));
}

MOE_INLINE __m512 begin_iq1_m(const moe_block_iq1_m *block, group_points *points)
{
    const __m256i qh = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)block->qh));
    const __m512i spread = _mm512_permutexvar_epi16(places_of_4(0), _mm512_castsi256_si512(qh));
    const __m512i nibbles = _mm512_srlv_epi16(spread, _mm512_set1_epi32(0x00040000));
    keep_numbers(points, block->qs, _mm512_slli_epi16(nibbles, 8), 0x0700);
    points->minus = _mm512_test_epi16_mask(nibbles, _mm512_set1_epi16(8));
    uint64_t scales;
    memcpy(&scales, block->scales, sizeof scales);
    const __m256i words = _mm512_castsi512_si256(_mm512_permutexvar_epi16(
        places_of_8(0), _mm512_castsi128_si512(_mm_cvtsi64_si128((long long)scales))));
    const __m256i s = _mm256_srlv_epi16(words, _mm256_set1_epi64x(0x0009000600030000));
    return scales_of_16(half_of_iq1_m(scales), 0.125f,
                        _mm512_cvtepu16_epi32(_mm256_and_si256(s, _mm256_set1_epi16(7))));
}

/* ---- Codes ---- */

MOE_INLINE __m512i codes_iq2(const group_points *points, int c)
{
    const __m512i levels = _mm512_set1_epi32((64 + 8) | (64 + 25) << 8 | (64 + 43) << 16);
    return signed_codes(_mm512_shuffle_epi8(levels, levels_of_8(points, c)), points->signs[c], 64);
}

MOE_INLINE __m512i codes_iq2_s(const group_points *points, int c)
{
    const __m512i magnitudes = load_points(moe_iq2_s_bytes, points, c);
    return signed_codes(_mm512_add_epi8(magnitudes, _mm512_set1_epi8(64)), points->signs[c], 64);
}

MOE_INLINE __m512i codes_iq3_xxs(const group_points *points, int c)
{
    const __m128i magnitudes = _mm_setr_epi8(MOE_IQ3_XXS_LEVELS, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i levels = _mm512_broadcast_i32x4(_mm_add_epi8(magnitudes, _mm_set1_epi8(64)));
    return signed_codes(_mm512_shuffle_epi8(levels, levels_of_4(points, c)), points->signs[c], 64);
}

MOE_INLINE __m512i codes_iq3_s(const group_points *points, int c)
{
    const __m512i levels = levels_of_4(points, c);
    const __m512i magnitudes =
        _mm512_add_epi8(_mm512_add_epi8(levels, levels), _mm512_set1_epi8(16 + 1));
    return signed_codes(magnitudes, points->signs[c], 16);
}

MOE_INLINE __m512i codes_iq1(const group_points *points, int c)
{
    const __m512i eighths = load_points(moe_iq1_bytes, points, c);
    const __m512i codes = _mm512_add_epi8(eighths, _mm512_set1_epi8(8 + 1));
    const __mmask8 minus = (__mmask8)(points->minus >> 8 * c);
    return _mm512_mask_sub_epi64(codes, minus, codes, _mm512_set1_epi8(2));
}

#endif
