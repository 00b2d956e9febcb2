/* SPDX-License-Identifier: MIT */
/* AVX2 products of the types with blocks of 256 and runs of 32. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_256
#include "cpu/x86/matmul_avx2.h"

MOE_QUANT_TYPES_256(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx2_256(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_256(MOE_SET_QUANT_MATMUL, kernels)
}
