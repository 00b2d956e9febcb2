/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of the types in which one bit of each run (the elements that share a scale)
 * shifts the run's codes. Runs have 16 elements.
 */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_SHIFTED_16
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_QUANT_TYPES_SHIFTED_16(MOE_MATMUL_AND_TILES, matmul)

void moe_matmul_init_avx512_vnni_shifted_16(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_SHIFTED_16(MOE_SET_MATMUL_AND_TILES, kernels)
}
