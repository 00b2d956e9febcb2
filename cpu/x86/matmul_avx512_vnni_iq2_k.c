/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of IQ2_K: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_MATMUL_AND_TILES(iq2_k, IQ2_K, matmul)

void moe_matmul_init_avx512_vnni_iq2_k(moe_matmul_kernels *kernels)
{
    MOE_SET_MATMUL_AND_TILES(iq2_k, IQ2_K, kernels)
}
