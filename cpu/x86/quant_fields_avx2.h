/* SPDX-License-Identifier: MIT */
/* Fields of bits in bytes, with AVX2: the parts of unpacking that many types share. */
#ifndef MOE_X86_QUANT_FIELDS_AVX2_H
#define MOE_X86_QUANT_FIELDS_AVX2_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/always_inline.h"

#include <immintrin.h>

MOE_INLINE __m256i load_32(const uint8_t *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

/* Splits 16 bytes into 32 nibbles: first the low ones, then the high ones. */
MOE_INLINE __m256i nibbles_of_bytes(__m128i bytes)
{
    const __m256i both = _mm256_broadcastsi128_si256(bytes);
    return _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)),
                            _mm256_set1_epi8(15));
}

MOE_INLINE __m256i nibbles_of_16(const uint8_t *qs)
{
    return nibbles_of_bytes(_mm_loadu_si128((const __m128i *)qs));
}

/* Moves bit `from` of every byte to bit `to`, and keeps the bits of `mask`. */
MOE_INLINE __m256i field(__m256i bytes, int from, int to, char mask)
{
    const __m256i moved =
        from >= to ? _mm256_srli_epi16(bytes, from - to) : _mm256_slli_epi16(bytes, to - from);
    return _mm256_and_si256(moved, _mm256_set1_epi8(mask));
}

MOE_INLINE __m256i iq4_codes(__m256i nibbles, int is_signed)
{
    const __m128i codes = _mm_setr_epi8(MOE_IQ4_CODES);
    const __m128i offset = _mm_set1_epi8(is_signed ? 0 : (char)0x80);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_xor_si128(codes, offset)), nibbles);
}

#endif
