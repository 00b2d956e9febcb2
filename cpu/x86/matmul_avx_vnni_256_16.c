/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of the types with blocks of 256 and runs of 16. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_256_16
#include "cpu/x86/matmul_avx_vnni.h"

MOE_QUANT_TYPES_256_16(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx_vnni_256_16(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_256_16(MOE_SET_QUANT_MATMUL, kernels)
}
