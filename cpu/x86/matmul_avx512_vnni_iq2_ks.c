/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of IQ2_KS: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx512_vnni.h"

MOE_ROW_SCALED_AND_TILES(iq2_ks, IQ2_KS, matmul)

void moe_matmul_init_avx512_vnni_iq2_ks(moe_matmul_kernels *kernels)
{
    MOE_SET_MATMUL_AND_TILES(iq2_ks, IQ2_KS, kernels)
}
