/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of IQ3_KS: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx_vnni.h"

MOE_ROW_SCALED_MATMUL(iq3_ks, IQ3_KS, multiply)

void moe_matmul_init_avx_vnni_iq3_ks(moe_matmul_kernels *kernels)
{
    MOE_SET_QUANT_MATMUL(iq3_ks, IQ3_KS, kernels)
}
