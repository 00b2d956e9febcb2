/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX2. vpmaddubsw multiplies unsigned by signed bytes and adds
 * two products in 16 bits: codes up to 63 cannot saturate it. Codes of all 256 values go in as
 * their magnitude and give the activations their sign: 2 * 128 * 127 still fits. */
#include "cpu/x86/quant_tiles_avx2.h"

MOE_INLINE void multiply(moe_dtype type, const moe_matmul_args *args)
{
    matmul(type, NULL, args);
}

MOE_QUANT_TYPES_32(MOE_QUANT_MATMUL, multiply)
MOE_QUANT_TYPES_256(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx2(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_32(MOE_SET_QUANT_MATMUL, kernels)
    MOE_QUANT_TYPES_256(MOE_SET_QUANT_MATMUL, kernels)
}
