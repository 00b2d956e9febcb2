/* SPDX-License-Identifier: MIT */
/* Fields of bits in bytes, with AVX-512: the parts of unpacking that many types share. */
#ifndef MOE_X86_QUANT_FIELDS_AVX512_H
#define MOE_X86_QUANT_FIELDS_AVX512_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/quant_types.h"

#include <immintrin.h>

MOE_INLINE __m512i halves_epi8(char low, char high)
{
    return _mm512_inserti64x4(_mm512_set1_epi8(low), _mm256_set1_epi8(high), 1);
}

MOE_INLINE __m512 broadcast_half(const uint16_t *half)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)*half));
}

/* Splits two arrays of 16 bytes into 64 nibbles: the low ones of the first array, its high ones,
 * then those of the second array in the same order. */
MOE_INLINE __m512i nibbles_of_two(__m128i bytes0, __m128i bytes1)
{
    const __m512i first = _mm512_broadcast_i32x4(bytes0);
    const __m512i second = _mm512_broadcast_i32x4(bytes1);
    const __m512i bytes = _mm512_mask_blend_epi64(0xf0, first, second);
    const __m512i shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi64(bytes, shifts), _mm512_set1_epi8(15));
}

MOE_INLINE __m512i nibbles_of_pair(const uint8_t *qs0, const uint8_t *qs1)
{
    return nibbles_of_two(_mm_loadu_si128((const __m128i *)qs0),
                          _mm_loadu_si128((const __m128i *)qs1));
}

/* Extracts the fields of a chunk of 64 elements from 32 bytes: for the first 32 elements the bytes
 * are shifted right by `low`, for the others by `high`; then they are masked. */
MOE_INLINE __m512i fields_of_32(const uint8_t *bytes, int low, int high, char mask)
{
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)bytes));
    const __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi64(low), _mm256_set1_epi64x(high), 1);
    return _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(mask));
}

/* The mask of a chunk of 64 elements: for the first 32, where bit `low` of the 32 bytes is set; for
 * the others, where bit `high` is set. */
MOE_INLINE __mmask64 bits_of_32(const uint8_t *bytes, int low, int high)
{
    const __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)bytes));
    return _mm512_test_epi8_mask(both, halves_epi8((char)(1 << low), (char)(1 << high)));
}

/* Adds `value` to codes of chunk c: to the first 32 where bit 2c of the 32 bytes is set, to the
 * others where bit 2c + 1 is set. */
MOE_INLINE __m512i add_plane(__m512i codes, const uint8_t *planes, int c, char value)
{
    const __mmask64 set = bits_of_32(planes, 2 * c, 2 * c + 1);
    return _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(value));
}

MOE_INLINE __m512i add_fifth_bits(__m512i codes, const uint8_t *qh0, const uint8_t *qh1)
{
    uint32_t low, high;
    memcpy(&low, qh0, 4);
    memcpy(&high, qh1, 4);
    const __mmask64 set = (uint64_t)high << 32 | low;
    return _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16));
}

MOE_INLINE __m512i iq4_table(void)
{
    const __m128i codes = _mm_setr_epi8(MOE_IQ4_CODES);
    return _mm512_broadcast_i32x4(_mm_xor_si128(codes, _mm_set1_epi8((char)0x80)));
}

MOE_INLINE __m512i mxfp4_table(void)
{
    const __m128i codes = _mm_setr_epi8(MOE_MXFP4_CODES);
    return _mm512_broadcast_i32x4(_mm_add_epi8(codes, _mm_set1_epi8(MXFP4_OFFSET)));
}

#endif
