/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of IQ5_KS: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx_vnni.h"

MOE_ROW_SCALED_MATMUL(iq5_ks, IQ5_KS, multiply)

void moe_matmul_init_avx_vnni_iq5_ks(moe_matmul_kernels *kernels)
{
    MOE_SET_QUANT_MATMUL(iq5_ks, IQ5_KS, kernels)
}
