/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of IQ3_K: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_MATMUL_AND_TILES(iq3_k, IQ3_K, matmul)

void moe_matmul_init_avx512_vnni_iq3_k(moe_matmul_kernels *kernels)
{
    MOE_SET_MATMUL_AND_TILES(iq3_k, IQ3_K, kernels)
}
