/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of the types with blocks of 32 whose codes stand for bytes. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_BYTES
#include "cpu/x86/matmul_avx_vnni.h"

MOE_QUANT_TYPES_BYTES(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx_vnni_bytes(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_BYTES(MOE_SET_QUANT_MATMUL, kernels)
}
