/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX2. vpmaddubsw multiplies unsigned by signed bytes and adds
 * two products in 16 bits: codes up to 63 cannot saturate it. Codes that use all 256 values enter
 * as magnitudes, and their signs move to the activations: 2 * 128 * 127 still fits. */
#ifndef MOE_X86_MATMUL_AVX2_H
#define MOE_X86_MATMUL_AVX2_H

#include "cpu/x86/quant_tiles_avx2.h"

MOE_INLINE void multiply(moe_dtype type, const moe_matmul_args *args)
{
    matmul(type, NULL, args);
}

#endif
