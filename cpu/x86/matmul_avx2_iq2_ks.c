/* SPDX-License-Identifier: MIT */
/* AVX2 products of IQ2_KS: a file for each type, so that they compile side by side. */
#include "cpu/x86/matmul_avx2.h"

MOE_ROW_SCALED_MATMUL(iq2_ks, IQ2_KS, multiply)

void moe_matmul_init_avx2_iq2_ks(moe_matmul_kernels *kernels)
{
    MOE_SET_QUANT_MATMUL(iq2_ks, IQ2_KS, kernels)
}
