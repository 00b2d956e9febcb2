/* SPDX-License-Identifier: MIT */
/* Unpacks the integers that types with blocks of 256 elements store as scales and minima, into
 * registers of 128 bits (256 for eight integers of 32 bits). AVX2 suffices. The files of each
 * instruction set convert them to floats in their own registers. The arithmetic is that of
 * block_unpack_formats.c. */
#ifndef MOE_X86_QUANT_SCALES_X86_H
#define MOE_X86_QUANT_SCALES_X86_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/quant_types.h"

#include <immintrin.h>

/* Blocks of Q4_K and Q5_K begin with d, dmin and 12 bytes of scales; head: these 16 bytes. Returns
 * eight scales, then eight minima, unsigned. */
MOE_INLINE __m128i packed_scales_q4_k(__m128i head)
{
    const __m128i low = _mm_shuffle_epi8(
        head, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m128i high = _mm_shuffle_epi8(
        head, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m128i six =
        _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                      _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i top = _mm_and_si128(_mm_srli_epi32(high, 2), _mm_set1_epi8(0x30));
    return _mm_or_si128(six, top);
}

/* The low nibbles are scales, the high ones minima. */
MOE_INLINE __m128i packed_scales_q2_k(const moe_block_q2_k *block, __m128i *mins)
{
    const __m128i both = _mm_loadu_si128((const __m128i *)block->scales);
    const __m128i mask = _mm_set1_epi8(15);
    *mins = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
    return _mm_and_si128(both, mask);
}

/* Q3_K has sixteen signed scales. Returns their low nibbles, and in *pairs their upper bits: bits
 * 2i and 2i + 1 of each byte of word i are bits 4 and 5 of a scale. */
MOE_INLINE __m128i packed_scales_q3_k(const moe_block_q3_k *block, __m128i *pairs)
{
    /* The last 16 bytes of the block: two bytes of codes, the 12 bytes of scales, and d. */
    const __m128i tail = _mm_loadu_si128((const __m128i *)(block + 1) - 1);
    const __m128i low =
        _mm_shuffle_epi8(tail, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
    *pairs = _mm_shuffle_epi8(
        tail, _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
    return _mm_and_si128(_mm_srlv_epi64(low, _mm_set_epi64x(4, 0)), _mm_set1_epi8(15));
}

/* Joins the low nibbles of scales with `top`, their bits 4 and 5. */
MOE_INLINE __m128i join_scales_q3_k(__m128i low, __m128i top)
{
    return _mm_sub_epi8(_mm_or_si128(low, top), _mm_set1_epi8(32));
}

/* Sixteen signed scales. */
MOE_INLINE __m128i packed_scales_q6_k(const moe_block_q6_k *block)
{
    return _mm_loadu_si128((const __m128i *)block->scales);
}

/* Eight signed scales of 32 bits. */
MOE_INLINE __m256i packed_scales_iq4_xs(const moe_block_iq4_xs *block)
{
    uint32_t scales_l;
    memcpy(&scales_l, block->scales_l, 4);
    const __m256i low =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)scales_l),
                                           _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                         _mm256_set1_epi32(15));
    const __m256i high =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(block->scales_h << 4),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                         _mm256_set1_epi32(0x30));
    return _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
}

#endif
