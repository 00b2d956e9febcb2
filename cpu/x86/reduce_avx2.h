/* SPDX-License-Identifier: MIT */
/* The reduction tree of matmul.h on four sums at once, with AVX. */
#ifndef MOE_X86_REDUCE_AVX2_H
#define MOE_X86_REDUCE_AVX2_H

#include "cpu/x86/always_inline.h"

#include <immintrin.h>
#include <stdint.h>

/* Lanes 0..7 and 8..15 of one sum. */
typedef struct lanes_avx2 {
    __m256 half[2];
} lanes_avx2;

MOE_INLINE __m128 reduce_4_of_8(__m256 a, __m256 b, __m256 c, __m256 d)
{
    const __m256 ab =
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    const __m256 cd =
        _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    /* The low half has pairs of a and c, the high half pairs of b and d. */
    const __m256 pairs =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    const __m256 acac_bdbd =
        _mm256_add_ps(_mm256_shuffle_ps(pairs, pairs, 0x88), _mm256_shuffle_ps(pairs, pairs, 0xdd));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(acac_bdbd), _mm256_extractf128_ps(acac_bdbd, 1));
}

MOE_INLINE __m128 reduce_4(const lanes_avx2 sums[4])
{
    return reduce_4_of_8(_mm256_add_ps(sums[0].half[0], sums[0].half[1]),
                         _mm256_add_ps(sums[1].half[0], sums[1].half[1]),
                         _mm256_add_ps(sums[2].half[0], sums[2].half[1]),
                         _mm256_add_ps(sums[3].half[0], sums[3].half[1]));
}

/* Stores the first n of four floats. */
static inline void store_first(float *out, __m128 sums, uint32_t n)
{
    const __m128i wanted = _mm_cmpgt_epi32(_mm_set1_epi32((int)n), _mm_setr_epi32(0, 1, 2, 3));
    _mm_maskstore_ps(out, wanted, sums);
}

#endif
