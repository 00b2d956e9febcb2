/* SPDX-License-Identifier: MIT */
/* AVX2 products of the types with blocks of 32 whose codes stand for bytes. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_BYTES
#include "cpu/x86/matmul_avx2.h"

MOE_QUANT_TYPES_BYTES(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx2_bytes(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_BYTES(MOE_SET_QUANT_MATMUL, kernels)
}
