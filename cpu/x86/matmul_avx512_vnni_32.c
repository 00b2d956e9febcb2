/* SPDX-License-Identifier: MIT */
/* AVX-512 VNNI products of the types with blocks of 32. */
#include "cpu/x86/matmul_avx512_vnni.h"

MATMUL(q4_0, MOE_DTYPE_Q4_0)
MATMUL(q4_1, MOE_DTYPE_Q4_1)
MATMUL(q5_0, MOE_DTYPE_Q5_0)
MATMUL(q5_1, MOE_DTYPE_Q5_1)
MATMUL(q8_0, MOE_DTYPE_Q8_0)
MATMUL(iq4_nl, MOE_DTYPE_IQ4_NL)
MATMUL(mxfp4, MOE_DTYPE_MXFP4)

void moe_matmul_init_avx512_vnni_32(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_Q4_0] = matmul_q4_0;
    kernels->matmul[MOE_DTYPE_Q4_1] = matmul_q4_1;
    kernels->matmul[MOE_DTYPE_Q5_0] = matmul_q5_0;
    kernels->matmul[MOE_DTYPE_Q5_1] = matmul_q5_1;
    kernels->matmul[MOE_DTYPE_Q8_0] = matmul_q8_0;
    kernels->matmul[MOE_DTYPE_IQ4_NL] = matmul_iq4_nl;
    kernels->matmul[MOE_DTYPE_MXFP4] = matmul_mxfp4;
}
