/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of the types with blocks of 256. */
#include "cpu/x86/matmul_avx512_vnni.h"

MATMUL(q2_k, MOE_DTYPE_Q2_K)
MATMUL(q3_k, MOE_DTYPE_Q3_K)
MATMUL(q4_k, MOE_DTYPE_Q4_K)
MATMUL(q5_k, MOE_DTYPE_Q5_K)
MATMUL(q6_k, MOE_DTYPE_Q6_K)
MATMUL(iq4_xs, MOE_DTYPE_IQ4_XS)

void moe_matmul_init_avx512_vnni_256(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_Q2_K] = matmul_q2_k;
    kernels->matmul[MOE_DTYPE_Q3_K] = matmul_q3_k;
    kernels->matmul[MOE_DTYPE_Q4_K] = matmul_q4_k;
    kernels->matmul[MOE_DTYPE_Q5_K] = matmul_q5_k;
    kernels->matmul[MOE_DTYPE_Q6_K] = matmul_q6_k;
    kernels->matmul[MOE_DTYPE_IQ4_XS] = matmul_iq4_xs;
}
