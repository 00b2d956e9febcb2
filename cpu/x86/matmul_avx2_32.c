/* SPDX-License-Identifier: MIT */
/* AVX2 products of the types with blocks of 32 whose codes have 4 or 5 bits. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_32
#include "cpu/x86/matmul_avx2.h"

MOE_QUANT_TYPES_32(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx2_32(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_32(MOE_SET_QUANT_MATMUL, kernels)
}
