/* SPDX-License-Identifier: MIT */
/* AVX2 products of the ternary types and of NVFP4. Each family of types has a file of its
 * own, so that the files compile in parallel. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_TERNARY
#include "cpu/x86/matmul_avx2.h"

MOE_QUANT_TYPES_TERNARY(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx2_ternary(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_TERNARY(MOE_SET_QUANT_MATMUL, kernels)
}
