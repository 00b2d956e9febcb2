/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of IQ3_K: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx_vnni.h"

MOE_QUANT_MATMUL(iq3_k, IQ3_K, multiply)

void moe_matmul_init_avx_vnni_iq3_k(moe_matmul_kernels *kernels)
{
    MOE_SET_QUANT_MATMUL(iq3_k, IQ3_K, kernels)
}
