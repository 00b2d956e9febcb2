/* SPDX-License-Identifier: MIT */
/* Shared by all ways of multiplying in quant_tiles_avx2.h: the difference between AVX2 and
 * AVX-VNNI, and the bounds of codes. */
#ifndef MOE_X86_QUANT_ROWS_AVX2_H
#define MOE_X86_QUANT_ROWS_AVX2_H

#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_rows_x86.h"
#include "cpu/x86/quant_unpack_avx2.h"

#include <stdbool.h>

/* The operation in which the instruction sets differ: start + the sums of four products of any
 * unsigned codes with q; NULL without VNNI. It is passed as a constant and inlined. */
typedef __m256i (*vnni_dot)(__m256i start, __m256i codes, __m256i q);

MOE_INLINE bool codes_are_signed(moe_dtype type, vnni_dot dot)
{
    return dot == NULL && quant_type_of(type).offset_shift == 7;
}

/* Whether every code exceeds its value by an offset that has to be subtracted from sums. */
MOE_INLINE bool has_offset(moe_dtype type, vnni_dot dot)
{
    return quant_type_of(type).offset_shift >= 0 && !codes_are_signed(type, dot);
}

/* Magnitude of the largest code. */
MOE_INLINE int max_code(moe_dtype type)
{
    switch (type_of_file(type)) {
    case MOE_DTYPE_TQ1_0:
        return 2;
    case MOE_DTYPE_Q2_K:
    case MOE_DTYPE_TQ2_0:
        return 3;
    case MOE_DTYPE_Q3_K:
        return 7;
    case MOE_DTYPE_Q4_0:
    case MOE_DTYPE_Q4_1:
    case MOE_DTYPE_Q4_K:
        return 15;
    case MOE_DTYPE_IQ1_S:
    case MOE_DTYPE_IQ1_M:
        return 16 + 9;
    case MOE_DTYPE_MXFP4:
    case MOE_DTYPE_NVFP4:
        return MXFP4_OFFSET + 12;
    case MOE_DTYPE_IQ3_S:
    case MOE_DTYPE_Q5_0:
    case MOE_DTYPE_Q5_1:
    case MOE_DTYPE_Q5_K:
        return 31;
    case MOE_DTYPE_IQ2_K:
    case MOE_DTYPE_IQ2_KS:
        return 32 + 22;
    case MOE_DTYPE_Q6_K:
        return 63;
    case MOE_DTYPE_IQ2_XXS:
    case MOE_DTYPE_IQ2_XS:
    case MOE_DTYPE_IQ2_S:
        return 64 + 43;
    case MOE_DTYPE_IQ3_K:
    case MOE_DTYPE_IQ3_KS:
        return 64 + 51;
    case MOE_DTYPE_IQ3_XXS:
        return 64 + 62;
    default:
        return 255;
    }
}

/* How many products of a code with an activation (at most 127) can be added in a 16-bit word. */
MOE_INLINE int products_in_16_bits(moe_dtype type, vnni_dot dot)
{
    return 32767 / 127 / (codes_are_signed(type, dot) ? 128 : max_code(type));
}

MOE_INLINE __m256i pairs_of_words(__m256i words)
{
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

#endif
