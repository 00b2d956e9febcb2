/* SPDX-License-Identifier: MIT */
/* The contract's reduction of lanes, for 16 outputs at a time. */
#ifndef MOE_X86_QUANT_LANES_AVX512_H
#define MOE_X86_QUANT_LANES_AVX512_H

#include "cpu/kernels/block_formats.h"
#include "cpu/x86/always_inline.h"

#include <immintrin.h>

/* The reduction tree, in registers once it is inlined with a constant. */
MOE_INLINE __m512 reduce_lanes(const __m512 *lanes, uint32_t n)
{
    __m512 sum[MOE_GROUP / 16];
#pragma GCC unroll 8
    for (uint32_t l = 0; l < n / 2; l++) {
        sum[l] = _mm512_add_ps(lanes[l], lanes[l + n / 2]);
    }
#pragma GCC unroll 4
    for (uint32_t h = n / 4; h > 0; h /= 2) {
#pragma GCC unroll 4
        for (uint32_t l = 0; l < h; l++) {
            sum[l] = _mm512_add_ps(sum[l], sum[l + h]);
        }
    }
    return sum[0];
}

#endif
