/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of the types in which one bit of each run (the elements that share a scale)
 * shifts the run's codes. Runs have 32 elements; rows begin with a scale. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_SHIFTED_32
#include "cpu/x86/matmul_avx_vnni.h"

MOE_QUANT_TYPES_SHIFTED_32(MOE_ROW_SCALED_MATMUL, multiply)

void moe_matmul_init_avx_vnni_shifted_32(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_SHIFTED_32(MOE_SET_QUANT_MATMUL, kernels)
}
