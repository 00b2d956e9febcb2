/* SPDX-License-Identifier: MIT */
/* AVX2 products of IQ4_KSS: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx2.h"

MOE_ROW_SCALED_MATMUL(iq4_kss, IQ4_KSS, multiply)

void moe_matmul_init_avx2_iq4_kss(moe_matmul_kernels *kernels)
{
    MOE_SET_QUANT_MATMUL(iq4_kss, IQ4_KSS, kernels)
}
