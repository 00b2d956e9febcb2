/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of the types with blocks of 32 whose codes have 4 or 5 bits. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_32
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_QUANT_TYPES_32(MOE_MATMUL_AND_TILES, matmul)

void moe_matmul_init_avx512_vnni_32(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_32(MOE_SET_MATMUL_AND_TILES, kernels)
}
