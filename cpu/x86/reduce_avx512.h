/* SPDX-License-Identifier: MIT */
/* The reduction trees of matmul.h on the lanes of four sums at once. Lanes that the tree does not
 * use compute the same sums with swapped operands, which changes no bit. */
#ifndef MOE_X86_REDUCE_AVX512_H
#define MOE_X86_REDUCE_AVX512_H

#include "cpu/x86/always_inline.h"

#include <immintrin.h>
#include <stdint.h>

/* Reduces four sums of 4 lanes each, one in each 128-bit quarter: the steps h = 2 and h = 1. */
MOE_INLINE __m128 reduce_quarters(__m512 sum)
{
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0x4e));
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1));
    const __m512i firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sum));
}

/* Reduces four sums of 16 lanes each. The step h = 8 puts a and b in one register, and c and d in
 * another; the step h = 4 puts all four in one. */
MOE_INLINE __m128 reduce_4x16(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    return reduce_quarters(
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)));
}

/* Reduces four sums of 8 lanes each: ab holds two of them, and cd the other two. */
MOE_INLINE __m128 reduce_4x8(__m512 ab, __m512 cd)
{
    return reduce_quarters(
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)));
}

/* Stores the first n of four floats. The store has a mask of sixteen lanes: from a store with a
 * mask of four lanes gcc makes a VEXTRACTF32X4, which faults at an inaccessible page even if the
 * mask leaves out the lanes there. */
MOE_INLINE void store_first(float *out, __m128 sums, uint32_t n)
{
    _mm512_mask_storeu_ps(out, (__mmask16)((1u << n) - 1), _mm512_castps128_ps512(sums));
}

#endif
