/* SPDX-License-Identifier: MIT */
/* Products of quantised weights with AVX-512 VNNI, of few and of many activation rows. vpdpbusd
 * multiplies unsigned codes by signed activations; what a type's offset makes the integer sums too
 * large by is taken off before they become floats. */
#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_direct_avx512.h"
#include "cpu/x86/quant_panel_avx512.h"

/* Up to how many rows folding sums for each of them costs less than transposing the weights once.
 * A panel gets the weights of large types from memory later than tiles do. */
MOE_INLINE uint32_t max_direct_rows(moe_dtype type)
{
    return type == MOE_DTYPE_Q8_0 ? 8 : 4;
}

MOE_INLINE void matmul(moe_dtype type, const moe_matmul_args *args)
{
    if (args->n_rows <= max_direct_rows(type) || args->n_in == 0) {
        for (uint32_t o = 0; o < args->n_out; o += DIRECT_OUT) {
            direct_tiles(type, args, o);
        }
        return;
    }
    for (uint32_t o = 0; o < args->n_out; o += MAX_PANELS * PANEL_OUT) {
        panel_tiles(type, args, o);
    }
}

/* A function a type, in which the type is a constant. (One function with all their loops inlined
 * takes compilers minutes and gigabytes.) */
#define MATMUL(name, type)                                                                         \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        matmul(type, args);                                                                        \
    }
MATMUL(q4_0, MOE_DTYPE_Q4_0)
MATMUL(q4_1, MOE_DTYPE_Q4_1)
MATMUL(q5_0, MOE_DTYPE_Q5_0)
MATMUL(q5_1, MOE_DTYPE_Q5_1)
MATMUL(q8_0, MOE_DTYPE_Q8_0)
MATMUL(q2_k, MOE_DTYPE_Q2_K)
MATMUL(q3_k, MOE_DTYPE_Q3_K)
MATMUL(q4_k, MOE_DTYPE_Q4_K)
MATMUL(q5_k, MOE_DTYPE_Q5_K)
MATMUL(q6_k, MOE_DTYPE_Q6_K)
MATMUL(iq4_nl, MOE_DTYPE_IQ4_NL)
MATMUL(iq4_xs, MOE_DTYPE_IQ4_XS)
MATMUL(mxfp4, MOE_DTYPE_MXFP4)
#undef MATMUL

void moe_matmul_init_avx512_vnni(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_Q4_0] = matmul_q4_0;
    kernels->matmul[MOE_DTYPE_Q4_1] = matmul_q4_1;
    kernels->matmul[MOE_DTYPE_Q5_0] = matmul_q5_0;
    kernels->matmul[MOE_DTYPE_Q5_1] = matmul_q5_1;
    kernels->matmul[MOE_DTYPE_Q8_0] = matmul_q8_0;
    kernels->matmul[MOE_DTYPE_Q2_K] = matmul_q2_k;
    kernels->matmul[MOE_DTYPE_Q3_K] = matmul_q3_k;
    kernels->matmul[MOE_DTYPE_Q4_K] = matmul_q4_k;
    kernels->matmul[MOE_DTYPE_Q5_K] = matmul_q5_k;
    kernels->matmul[MOE_DTYPE_Q6_K] = matmul_q6_k;
    kernels->matmul[MOE_DTYPE_IQ4_NL] = matmul_iq4_nl;
    kernels->matmul[MOE_DTYPE_IQ4_XS] = matmul_iq4_xs;
    kernels->matmul[MOE_DTYPE_MXFP4] = matmul_mxfp4;
}
