/* SPDX-License-Identifier: MIT */
/* AVX-VNNI products of IQ4_K: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx_vnni.h"

MOE_QUANT_MATMUL(iq4_k, IQ4_K, multiply)

void moe_matmul_init_avx_vnni_iq4_k(moe_matmul_kernels *kernels)
{
    MOE_SET_QUANT_MATMUL(iq4_k, IQ4_K, kernels)
}
