/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of the IQ2 types, which store about two bits for a weight: eight weights
 * together are one entry (a point) of a codebook. Each family of types has a file of its own, so
 * that the files compile in parallel. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_IQ2
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_QUANT_TYPES_IQ2(MOE_MATMUL_AND_TILES, matmul)

void moe_matmul_init_avx512_vnni_iq2(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_IQ2(MOE_SET_MATMUL_AND_TILES, kernels)
}
