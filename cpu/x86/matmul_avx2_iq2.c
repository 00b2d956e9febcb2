/* SPDX-License-Identifier: MIT */
/* AVX2 products of the types with points of two bits: a file for each family of types, so
 * that they compile side by side. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_IQ2
#include "cpu/x86/matmul_avx2.h"

MOE_QUANT_TYPES_IQ2(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx2_iq2(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_IQ2(MOE_SET_QUANT_MATMUL, kernels)
}
