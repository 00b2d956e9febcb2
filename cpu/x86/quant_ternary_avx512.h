/* SPDX-License-Identifier: MIT */
/* Unpacks the ternary types and NVFP4 with AVX-512. */
#ifndef MOE_X86_QUANT_TERNARY_AVX512_H
#define MOE_X86_QUANT_TERNARY_AVX512_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/always_inline.h"

#include <immintrin.h>

/* Multiplies the bytes of `where` by three, modulo 256. */
MOE_INLINE __m512i three_times(__m512i bytes, __mmask64 where)
{
    return _mm512_mask_add_epi8(bytes, where, bytes, _mm512_add_epi8(bytes, bytes));
}

/* The codes of chunk c. Each element is a digit in base 3, number 0..4, of a byte; see
 * block_unpack_ternary.c. */
MOE_INLINE __m512i codes_tq1_0(const moe_block_tq1_0 *block, int c)
{
    const __m256i first = _mm256_loadu_si256((const __m256i *)block->qs);
    const __m512i rest = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(block->qs + 32)));
    const uint64_t high = ~UINT64_C(0) << 32;
    const uint64_t last = ~UINT64_C(0) << 48;
    const uint64_t all = ~UINT64_C(0);
    __m512i bytes;
    /* The bytes whose digit's number is at least 1, at least 2, .. */
    uint64_t at_least[4];
    if (c == 0) {
        bytes = _mm512_broadcast_i64x4(first);
        at_least[0] = high, at_least[1] = at_least[2] = at_least[3] = 0;
    } else if (c == 1) {
        bytes = _mm512_broadcast_i64x4(first);
        at_least[0] = at_least[1] = all, at_least[2] = high, at_least[3] = 0;
    } else if (c == 2) { /* digit 4 of the 32, 0 and 1 of the 16 */
        bytes = _mm512_inserti64x4(rest, first, 0);
        at_least[0] = last | ~high, at_least[1] = at_least[2] = at_least[3] = ~high;
    } else { /* digits 2, 3, 4 of the 16; 0 to 3 of the last four bytes */
        uint32_t four;
        memcpy(&four, block->qh, sizeof four);
        bytes = _mm512_inserti32x4(rest, _mm_set1_epi32((int)four), 3);
        at_least[0] = ~last | last << 4;
        at_least[1] = ~last | last << 8;
        at_least[2] = (~last & ~UINT64_C(0) << 16) | last << 12;
        at_least[3] = ~last & high;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        if (at_least[i] != 0) {
            bytes = three_times(bytes, at_least[i]);
        }
    }
    /* bytes * 3 >> 8 is 0 for bytes below 86, 1 below 171, else 2. */
    const __mmask64 one = _mm512_cmpge_epu8_mask(bytes, _mm512_set1_epi8(86));
    const __mmask64 two = _mm512_cmpge_epu8_mask(bytes, _mm512_set1_epi8((char)171));
    const __m512i digits = _mm512_maskz_set1_epi8(one, 1);
    return _mm512_mask_add_epi8(digits, two, digits, digits);
}

/* The nibbles of a block of 64: for each eight bytes, the low nibbles, then the high ones. */
MOE_INLINE __m512i nibbles_nvfp4(const uint8_t *block)
{
    const moe_block_nvfp4 *b = (const moe_block_nvfp4 *)block;
    const __m512i qs = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)b->qs));
    const __m512i twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), qs);
    const __m512i shifts = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, shifts), _mm512_set1_epi8(15));
}

/* moe_ue4m3_half() of four blocks, times 128. */
MOE_INLINE __m512 scales_nvfp4(const uint8_t *group)
{
    int32_t d[4];
#pragma GCC unroll 4
    for (size_t b = 0; b < 4; b++) {
        memcpy(&d[b], group + b * sizeof(moe_block_nvfp4), sizeof d[b]);
    }
    const __m128i bytes = _mm_setr_epi32(d[0], d[1], d[2], d[3]);
    const __mmask16 numbers = _mm_cmpneq_epi8_mask(bytes, _mm_set1_epi8(0x7f));
    const __m256i words = _mm256_cvtepu8_epi16(_mm_and_si128(bytes, _mm_set1_epi8(0x7f)));
    const __m512 halves = _mm512_cvtph_ps(_mm256_slli_epi16(words, 7));
    return _mm512_maskz_mul_ps(numbers, halves, _mm512_set1_ps(128));
}

#endif
