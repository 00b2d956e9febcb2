/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX-VNNI: AVX2 and the 256-bit vpdpbusd of processors without
 * AVX-512. */
#ifndef MOE_X86_MATMUL_AVX_VNNI_H
#define MOE_X86_MATMUL_AVX_VNNI_H

#include "cpu/x86/quant_tiles_avx2.h"

MOE_INLINE __m256i dot_vnni(__m256i start, __m256i codes, __m256i q)
{
    return _mm256_dpbusd_avx_epi32(start, codes, q);
}

MOE_INLINE void multiply(moe_dtype type, const moe_matmul_args *args)
{
    matmul(type, dot_vnni, args);
}

#endif
