/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of the types with points of one bit and a half: a file for each family of
 * types, so that they compile side by side. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_IQ1
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_QUANT_TYPES_IQ1(MOE_MATMUL_AND_TILES, matmul)

void moe_matmul_init_avx512_vnni_iq1(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_IQ1(MOE_SET_MATMUL_AND_TILES, kernels)
}
