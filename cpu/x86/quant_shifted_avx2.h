/* SPDX-License-Identifier: MIT */
/* Unpacks codes of the types in which one bit of each run (the 16 or 32 elements that share a
 * scale) shifts the run's codes, 32 at a time with AVX2.
 */
#ifndef MOE_X86_QUANT_SHIFTED_AVX2_H
#define MOE_X86_QUANT_SHIFTED_AVX2_H

#include "cpu/x86/quant_fields_avx2.h"
#include "cpu/x86/quant_shifted_x86.h"
#include "cpu/x86/quant_types.h"

/* Looks up bytes below 16 in a table, and adds `offset` to the codes. */
MOE_INLINE __m256i look_up(__m128i table, char offset, __m256i bytes)
{
    table = _mm_add_epi8(table, _mm_set1_epi8(offset));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), bytes);
}

/* Chooses bytes of b where bit `bit` of `bytes` is set, else bytes of a. */
MOE_INLINE __m256i choose(__m256i a, __m256i b, __m256i bytes, int bit)
{
    return _mm256_blendv_epi8(a, b, _mm256_slli_epi16(bytes, 7 - bit));
}

MOE_INLINE __m256i codes_of_5_bits(__m256i nibbles, const uint8_t *qh, int e, char offset)
{
    static const int8_t codes[32] = {MOE_IQ5_CODES};
    const __m128i *table = (const __m128i *)codes;
    return choose(look_up(_mm_loadu_si128(table), offset, nibbles),
                  look_up(_mm_loadu_si128(table + 1), offset, nibbles), load_32(qh), e);
}

MOE_INLINE __m256i codes_of_6_bits(__m256i nibbles, const uint8_t *qh, int e, char offset)
{
    static const int8_t codes[64] = {MOE_IQ6_CODES};
    const __m128i *table = (const __m128i *)codes;
    const __m256i pairs = load_32(qh + 32 * (e / 4));
    const int bit = 2 * (e % 4);
    const __m256i low = choose(look_up(_mm_loadu_si128(table), offset, nibbles),
                               look_up(_mm_loadu_si128(table + 1), offset, nibbles), pairs, bit);
    const __m256i high = choose(look_up(_mm_loadu_si128(table + 2), offset, nibbles),
                                look_up(_mm_loadu_si128(table + 3), offset, nibbles), pairs, bit);
    return choose(low, high, pairs, bit + 1);
}

/* IQ2 and IQ3. */
MOE_INLINE __m256i codes_of_pairs(const uint8_t *qs, int e)
{
    const __m128i table = _mm_setr_epi8(MOE_IQ2_CODES, MOE_IQ2_CODES, MOE_IQ2_CODES, MOE_IQ2_CODES);
    return look_up(table, 32, field(load_32(qs + 32 * (e / 4)), 2 * (e % 4), 0, 3));
}

MOE_INLINE __m256i codes_of_3_bits(const uint8_t *qs, const uint8_t *qh, int e)
{
    const __m256i low = field(load_32(qs + 32 * (e / 4)), 2 * (e % 4), 0, 3);
    const __m256i bits = _mm256_or_si256(low, field(load_32(qh), e, 2, 4));
    return look_up(_mm_setr_epi8(MOE_IQ3_CODES, MOE_IQ3_CODES), 64, bits);
}

MOE_INLINE __m256i nibbles_iq4_kss(const moe_block_iq4_kss *block, int e)
{
    const __m128i words = _mm_and_si128(_mm_loadu_si128((const __m128i *)block->qs[e]),
                                        _mm_set1_epi16((short)0xfffe));
    const __m128i bytes = _mm_xor_si128(words, _mm_srli_epi16(words, 1));
    return nibbles_of_bytes(bytes);
}

/* Unpacks elements 32e .. 32e + 31 of a block, before the shift. */
MOE_INLINE __m256i codes_before_shift(moe_dtype type, const uint8_t *block, int e, int is_signed)
{
    const moe_block_iq2_k *iq2 = (const moe_block_iq2_k *)block;
    const moe_block_iq2_ks *iq2_ks = (const moe_block_iq2_ks *)block;
    const moe_block_iq3_k *iq3 = (const moe_block_iq3_k *)block;
    const moe_block_iq3_ks *iq3_ks = (const moe_block_iq3_ks *)block;
    const moe_block_iq4_k *iq4 = (const moe_block_iq4_k *)block;
    const moe_block_iq4_ks *iq4_ks = (const moe_block_iq4_ks *)block;
    const moe_block_iq5_k *iq5 = (const moe_block_iq5_k *)block;
    const moe_block_iq5_ks *iq5_ks = (const moe_block_iq5_ks *)block;
    const moe_block_iq6_k *iq6 = (const moe_block_iq6_k *)block;
    const char offset = is_signed ? 0 : (char)0x80;
    const int half = 4 * (e % 2); /* the bit at which these elements' nibbles begin in a byte */
    switch (type_of_file(type)) {
    case MOE_DTYPE_IQ2_K:
        return codes_of_pairs(iq2->qs, e);
    case MOE_DTYPE_IQ2_KS:
        return codes_of_pairs(iq2_ks->qs, e);
    case MOE_DTYPE_IQ3_K:
        return codes_of_3_bits(iq3->qs, iq3->qh, e);
    case MOE_DTYPE_IQ3_KS:
        return codes_of_3_bits(iq3_ks->qs, iq3_ks->qh, e);
    case MOE_DTYPE_IQ4_K:
        return iq4_codes(nibbles_of_16(iq4->qs + 16 * e), is_signed);
    case MOE_DTYPE_IQ4_KS:
        return iq4_codes(nibbles_of_16(iq4_ks->qs + 16 * e), is_signed);
    case MOE_DTYPE_IQ4_KSS:
        return iq4_codes(nibbles_iq4_kss((const moe_block_iq4_kss *)block, e), is_signed);
    case MOE_DTYPE_IQ5_K:
        return codes_of_5_bits(field(load_32(iq5->qs + 32 * (e / 2)), half, 0, 15), iq5->qh, e,
                               offset);
    case MOE_DTYPE_IQ5_KS:
        return codes_of_5_bits(field(load_32(iq5_ks->qs + 32 * (e / 2)), half, 0, 15), iq5_ks->qh,
                               e, offset);
    default: /* IQ6_K */
        return codes_of_6_bits(field(load_32(iq6->qs + 32 * (e / 2)), half, 0, 15), iq6->qh, e,
                               offset);
    }
}

MOE_INLINE __m256i codes_of_shifted(moe_dtype type, const uint8_t *block, int e, int is_signed)
{
    __m256i shift;
    if (quant_type_of(type).run == 32) {
        shift = _mm256_set1_epi8(shift_of_run(type, block, e));
    } else { /* of runs 2e and 2e + 1 */
        const __m256i bits = _mm256_set_m128i(_mm_set1_epi16((short)(2 << 2 * e)),
                                              _mm_set1_epi16((short)(1 << 2 * e)));
        const __m256i all = _mm256_set1_epi16((short)shifts_of_16(block));
        shift = _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_and_si256(all, bits), bits),
                                 _mm256_set1_epi8(shift_of_type(type)));
    }
    return _mm256_add_epi8(codes_before_shift(type, block, e, is_signed), shift);
}

#endif
