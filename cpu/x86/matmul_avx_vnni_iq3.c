/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of the IQ3 types, which store about three bits for a weight: four weights
 * together are one entry (a point) of a codebook. Each family of types has a file of its own, so
 * that the files compile in parallel. */
#define MOE_FILE_TYPES MOE_QUANT_TYPES_IQ3
#include "cpu/x86/matmul_avx_vnni.h"

MOE_QUANT_TYPES_IQ3(MOE_QUANT_MATMUL, multiply)

void moe_matmul_init_avx_vnni_iq3(moe_matmul_kernels *kernels)
{
    MOE_QUANT_TYPES_IQ3(MOE_SET_QUANT_MATMUL, kernels)
}
