/* SPDX-License-Identifier: MIT */
/* Unpacks scales of the types in which one bit of each run (the 16 or 32 elements that share a
 * scale) shifts the run's codes, as whole numbers of one byte: sixteen, or eight in the lower half
 * of the register. AVX2 suffices. The arithmetic is that of block_unpack_shifted.c. */
#ifndef MOE_X86_QUANT_SHIFTED_X86_H
#define MOE_X86_QUANT_SHIFTED_X86_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/always_inline.h"
#include "runtime/base/dtype.h"

#include <immintrin.h>

/* The 16 nibbles of eight bytes, the low one of each byte first. */
MOE_INLINE __m128i run_nibbles(__m128i bytes)
{
    const __m128i mask = _mm_set1_epi8(15);
    return _mm_unpacklo_epi8(_mm_and_si128(bytes, mask),
                             _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
}

MOE_INLINE __m128i load_eight(const uint8_t *bytes)
{
    return _mm_loadl_epi64((const __m128i *)bytes);
}

MOE_INLINE __m128i load_four(const uint8_t *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm_cvtsi32_si128(word);
}

/* Bytes of ones where the bit of `bits` is set. */
MOE_INLINE __m128i where_set(__m128i bytes, __m128i bits)
{
    return _mm_cmpeq_epi8(_mm_and_si128(bytes, bits), bits);
}

/* Bytes of ones for the set bits of a word. */
MOE_INLINE __m128i bytes_of_word(uint16_t word)
{
    const __m128i both = _mm_shuffle_epi8(
        _mm_set1_epi16((short)word), _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    return where_set(both, _mm_set1_epi64x((long long)0x8040201008040201));
}

MOE_INLINE __m128i scales_iq3_k(const moe_block_iq3_k *block)
{
    const __m128i nibbles = run_nibbles(load_eight(block->scales));
    const __m128i odd = _mm_add_epi8(_mm_add_epi8(nibbles, nibbles), _mm_set1_epi8(1));
    const __m128i negative = bytes_of_word(block->signs);
    return _mm_sub_epi8(_mm_xor_si128(odd, negative), negative);
}

/* IQ4_K and IQ5_K. */
MOE_INLINE __m128i scales_of_six_bits(const moe_block_iq4_k *block)
{
    const __m128i pairs = _mm_shuffle_epi8(
        load_four(block->scales_h), _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    const __m128i low =
        _mm_and_si128(where_set(pairs, _mm_set1_epi32(0x40100401)), _mm_set1_epi8(16));
    const __m128i high =
        _mm_and_si128(where_set(pairs, _mm_set1_epi32((int)0x80200802)), _mm_set1_epi8(32));
    const __m128i six =
        _mm_or_si128(run_nibbles(load_eight(block->scales_l)), _mm_or_si128(low, high));
    return _mm_sub_epi8(six, _mm_set1_epi8(32));
}

/* IQ2_KS and IQ3_KS. */
MOE_INLINE __m128i scales_of_five_bits(__m128i nibbles, uint8_t scales_h)
{
    const __m128i fifth = _mm_and_si128(bytes_of_word(scales_h), _mm_set1_epi8(16));
    return _mm_sub_epi8(_mm_or_si128(nibbles, fifth), _mm_set1_epi8(16));
}

MOE_INLINE __m128i scales_iq3_ks(const moe_block_iq3_ks *block)
{
    const __m128i mask = _mm_set1_epi8(15);
    const __m128i bytes = load_four(block->scales);
    const __m128i nibbles = _mm_unpacklo_epi32(_mm_and_si128(bytes, mask),
                                               _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
    return scales_of_five_bits(nibbles, block->scales_h);
}

/* Scales from bytes whose lowest bit is the shift. */
MOE_INLINE __m128i odd_scales_of_bytes(__m128i bytes)
{
    return _mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8((char)254)), _mm_set1_epi8(127));
}

/* The lowest bits of 16 words. */
MOE_INLINE uint64_t lowest_bits(const uint16_t *words)
{
    const __m128i low = _mm_slli_epi16(_mm_loadu_si128((const __m128i *)words), 15);
    const __m128i high = _mm_slli_epi16(_mm_loadu_si128((const __m128i *)(words + 8)), 15);
    return (uint64_t)(unsigned)_mm_movemask_epi8(_mm_packs_epi16(low, high));
}

MOE_INLINE __m128i scales_iq4_kss(const moe_block_iq4_kss *block)
{
    uint64_t bytes = 0;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        bytes |= lowest_bits(block->qs[2 * i]) << 16 * i;
    }
    return odd_scales_of_bytes(_mm_cvtsi64_si128((long long)bytes));
}

MOE_INLINE __m128i scales_of_shifted(moe_dtype type, const uint8_t *block)
{
    const moe_block_iq2_k *iq2_k = (const moe_block_iq2_k *)block;
    const moe_block_iq2_ks *iq2_ks = (const moe_block_iq2_ks *)block;
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_K:
        return _mm_sub_epi8(run_nibbles(load_eight(iq2_k->scales)), _mm_set1_epi8(8));
    case MOE_DTYPE_IQ3_K:
        return scales_iq3_k((const moe_block_iq3_k *)block);
    case MOE_DTYPE_IQ4_K:
    case MOE_DTYPE_IQ5_K:
        return scales_of_six_bits((const moe_block_iq4_k *)block);
    case MOE_DTYPE_IQ6_K:
        return _mm_loadu_si128((const __m128i *)((const moe_block_iq6_k *)block)->scales);
    case MOE_DTYPE_IQ2_KS:
        return scales_of_five_bits(run_nibbles(load_four(iq2_ks->scales)), iq2_ks->scales_h);
    case MOE_DTYPE_IQ3_KS:
        return scales_iq3_ks((const moe_block_iq3_ks *)block);
    case MOE_DTYPE_IQ4_KSS:
        return scales_iq4_kss((const moe_block_iq4_kss *)block);
    default: /* IQ4_KS, IQ5_KS */
        return odd_scales_of_bytes(load_eight(((const moe_block_iq4_ks *)block)->scales));
    }
}

/* The number that is added to the codes of run `run` of 32 elements. */
MOE_INLINE char shift_of_run(moe_dtype type, const uint8_t *block, int run)
{
    const moe_block_iq2_ks *iq2 = (const moe_block_iq2_ks *)block;
    const moe_block_iq3_ks *iq3 = (const moe_block_iq3_ks *)block;
    const moe_block_iq4_ks *iq4 = (const moe_block_iq4_ks *)block;
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_KS:
        return (char)((iq2->shifts >> run & 1) * MOE_IQ2_SHIFT);
    case MOE_DTYPE_IQ3_KS:
        return (char)((iq3->shifts >> run & 1) * MOE_IQ4_SHIFT);
    case MOE_DTYPE_IQ4_KSS:
        return (char)((((const moe_block_iq4_kss *)block)->qs[run][0] & 1) * MOE_IQ4_SHIFT);
    case MOE_DTYPE_IQ5_KS:
        return (char)((iq4->scales[run] & 1) * MOE_IQ5_SHIFT);
    default:
        return (char)((iq4->scales[run] & 1) * MOE_IQ4_SHIFT);
    }
}

/* The number that a set bit adds to the codes of its run, for types with runs of 16. */
MOE_INLINE char shift_of_type(moe_dtype type)
{
    return type == MOE_DTYPE_IQ2_K   ? MOE_IQ2_SHIFT
           : type == MOE_DTYPE_IQ5_K ? MOE_IQ5_SHIFT
           : type == MOE_DTYPE_IQ6_K ? MOE_IQ6_SHIFT
                                     : MOE_IQ4_SHIFT;
}

MOE_INLINE uint16_t shifts_of_16(const uint8_t *block)
{
    return ((const moe_block_iq2_k *)block)->shifts;
}

#endif
