/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of IQ4_KS: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_ROW_SCALED_AND_TILES(iq4_ks, IQ4_KS, matmul)

void moe_matmul_init_avx512_vnni_iq4_ks(moe_matmul_kernels *kernels)
{
    MOE_SET_MATMUL_AND_TILES(iq4_ks, IQ4_KS, kernels)
}
