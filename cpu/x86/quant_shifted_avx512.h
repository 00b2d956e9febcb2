/* SPDX-License-Identifier: MIT */
/* Unpacks codes of the types in which one bit of each run (the 16 or 32 elements that share a
 * scale) shifts the run's codes, with AVX-512, 64 at a time. */
#ifndef MOE_X86_QUANT_SHIFTED_AVX512_H
#define MOE_X86_QUANT_SHIFTED_AVX512_H

#include "cpu/x86/quant_fields_avx512.h"
#include "cpu/x86/quant_shifted_x86.h"

/* A table of 16 codes in every quarter of a register; each code is increased by `offset`. */
MOE_INLINE __m512i table_with(__m128i codes, char offset)
{
    return _mm512_broadcast_i32x4(_mm_add_epi8(codes, _mm_set1_epi8(offset)));
}

MOE_INLINE __m512i table_at(const int8_t *codes)
{
    return table_with(_mm_loadu_si128((const __m128i *)codes), (char)0x80);
}

MOE_INLINE __m512i codes_of_5_bits(const uint8_t *qs, const uint8_t *qh, int c)
{
    static const int8_t codes[32] = {MOE_IQ5_CODES};
    const __m512i nibbles = fields_of_32(qs + 32 * c, 0, 4, 15);
    return _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table_at(codes), nibbles),
                                    bits_of_32(qh, 2 * c, 2 * c + 1), table_at(codes + 16),
                                    nibbles);
}

MOE_INLINE __m512i codes_iq6_k(const moe_block_iq6_k *block, int c)
{
    static const int8_t codes[64] = {MOE_IQ6_CODES};
    const __m512i nibbles = fields_of_32(block->qs + 32 * c, 0, 4, 15);
    const uint8_t *qh = block->qh + 32 * (c / 2);
    const int bit = 4 * (c % 2);
    const __mmask64 fifth = bits_of_32(qh, bit, bit + 2);
    const __mmask64 sixth = bits_of_32(qh, bit + 1, bit + 3);
    const __m512i low = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table_at(codes), nibbles),
                                                 fifth, table_at(codes + 16), nibbles);
    const __m512i high = _mm512_mask_shuffle_epi8(
        _mm512_shuffle_epi8(table_at(codes + 32), nibbles), fifth, table_at(codes + 48), nibbles);
    return _mm512_mask_blend_epi8(sixth, low, high);
}

/* IQ2 and IQ3. */
MOE_INLINE __m512i codes_of_pairs(const uint8_t *qs, int c)
{
    const __m128i codes = _mm_setr_epi8(MOE_IQ2_CODES, MOE_IQ2_CODES, MOE_IQ2_CODES, MOE_IQ2_CODES);
    const int pair = 4 * (c % 2);
    return _mm512_shuffle_epi8(table_with(codes, 32),
                               fields_of_32(qs + 32 * (c / 2), pair, pair + 2, 3));
}

MOE_INLINE __m512i codes_of_3_bits(const uint8_t *qs, const uint8_t *qh, int c)
{
    const int pair = 4 * (c % 2);
    const __m512i low = fields_of_32(qs + 32 * (c / 2), pair, pair + 2, 3);
    return _mm512_shuffle_epi8(table_with(_mm_setr_epi8(MOE_IQ3_CODES, MOE_IQ3_CODES), 64),
                               add_plane(low, qh, c, 4));
}

MOE_INLINE __m128i bytes_iq4_kss(const uint16_t *qs)
{
    const __m128i words =
        _mm_and_si128(_mm_loadu_si128((const __m128i *)qs), _mm_set1_epi16((short)0xfffe));
    return _mm_xor_si128(words, _mm_srli_epi16(words, 1));
}

/* Unpacks chunk c of a block, before the shift. */
MOE_INLINE __m512i codes_before_shift(moe_dtype type, const uint8_t *block, int c)
{
    const moe_block_iq3_k *iq3 = (const moe_block_iq3_k *)block;
    const moe_block_iq3_ks *iq3_ks = (const moe_block_iq3_ks *)block;
    const uint8_t *iq4 = ((const moe_block_iq4_k *)block)->qs + 32 * c;
    const uint8_t *iq4_ks = ((const moe_block_iq4_ks *)block)->qs + 32 * c;
    const moe_block_iq4_kss *kss = (const moe_block_iq4_kss *)block;
    const moe_block_iq5_k *iq5 = (const moe_block_iq5_k *)block;
    const moe_block_iq5_ks *iq5_ks = (const moe_block_iq5_ks *)block;
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_K:
        return codes_of_pairs(((const moe_block_iq2_k *)block)->qs, c);
    case MOE_DTYPE_IQ2_KS:
        return codes_of_pairs(((const moe_block_iq2_ks *)block)->qs, c);
    case MOE_DTYPE_IQ3_K:
        return codes_of_3_bits(iq3->qs, iq3->qh, c);
    case MOE_DTYPE_IQ3_KS:
        return codes_of_3_bits(iq3_ks->qs, iq3_ks->qh, c);
    case MOE_DTYPE_IQ4_K:
        return _mm512_shuffle_epi8(iq4_table(), nibbles_of_pair(iq4, iq4 + 16));
    case MOE_DTYPE_IQ4_KS:
        return _mm512_shuffle_epi8(iq4_table(), nibbles_of_pair(iq4_ks, iq4_ks + 16));
    case MOE_DTYPE_IQ4_KSS:
        return _mm512_shuffle_epi8(iq4_table(), nibbles_of_two(bytes_iq4_kss(kss->qs[2 * c]),
                                                               bytes_iq4_kss(kss->qs[2 * c + 1])));
    case MOE_DTYPE_IQ5_K:
        return codes_of_5_bits(iq5->qs, iq5->qh, c);
    case MOE_DTYPE_IQ5_KS:
        return codes_of_5_bits(iq5_ks->qs, iq5_ks->qh, c);
    default:
        return codes_iq6_k((const moe_block_iq6_k *)block, c);
    }
}

/* Four words of 16 bits, each with bit `run` set. */
MOE_INLINE long long words_of_run(int run)
{
    return (long long)(0x0001000100010001u * (UINT64_C(1) << run));
}

MOE_INLINE __m512i codes_of_shifted(moe_dtype type, const uint8_t *block, int c)
{
    const __m512i codes = codes_before_shift(type, block, c);
    if (quant_type_of(type).run == 32) {
        return _mm512_add_epi8(codes, halves_epi8(shift_of_run(type, block, 2 * c),
                                                  shift_of_run(type, block, 2 * c + 1)));
    }
    const long long r0 = words_of_run(4 * c), r1 = words_of_run(4 * c + 1);
    const long long r2 = words_of_run(4 * c + 2), r3 = words_of_run(4 * c + 3);
    const __m512i bits = _mm512_setr_epi64(r0, r0, r1, r1, r2, r2, r3, r3);
    const __mmask32 set =
        _mm512_test_epi16_mask(_mm512_set1_epi16((short)shifts_of_16(block)), bits);
    /* Adding words adds their bytes, because no sum of two bytes exceeds a byte. */
    return _mm512_mask_add_epi16(codes, set, codes, _mm512_set1_epi8(shift_of_type(type)));
}

#endif
