/* SPDX-License-Identifier: MIT */
/* Products of quantised weights on 256-bit registers, for AVX2 and for AVX-VNNI: few activation
 * rows as in quant_direct_avx2.h, which folds each row's sums, more as in quant_panel_avx2.h, which
 * transposes weights so that nothing need be folded. A panel takes as long to fill as the products
 * of some five rows with it; up to MAX_DIRECT_ROWS folding is cheaper.
 *
 * Either way a run's sum is an exact integer and every lane sees its runs in order, hence equal
 * bits. Rows past the last weight row repeat it and are not stored. A group that the row's end cuts
 * short is worked on in a copy whose other blocks change nothing. */
#ifndef MOE_X86_QUANT_TILES_AVX2_H
#define MOE_X86_QUANT_TILES_AVX2_H

#include "cpu/x86/quant_direct_avx2.h"
#include "cpu/x86/quant_panel_avx2.h"

MOE_INLINE void matmul(moe_dtype type, vnni_dot dot, const moe_matmul_args *args)
{
    for (uint32_t o = 0; o < args->n_out && args->n_rows <= MAX_DIRECT_ROWS; o += DIRECT_OUT) {
        if (args->n_rows == 1) {
            direct_rows(type, dot, args, o, 1);
        } else if (args->n_rows == 2) {
            direct_rows(type, dot, args, o, 2);
        } else if (args->n_rows == 3) {
            direct_rows(type, dot, args, o, 3);
        }
    }
    for (uint32_t o = 0; o < args->n_out && args->n_rows > MAX_DIRECT_ROWS; o += TILE_OUT) {
        for (uint32_t r = 0; r < args->n_rows; r += ROW_BLOCK) {
            panel_tiles(type, dot, args, o, r);
        }
    }
}

/* What defines a function a type, in which the type is a constant, and puts them into the table.
 * (One function with all their loops inlined takes compilers minutes and gigabytes.) */
#define QUANT_MATMUL(name, type, dot)                                                              \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        matmul(type, dot, args);                                                                   \
    }
#define QUANT_MATMULS(dot)                                                                         \
    QUANT_MATMUL(q4_0, MOE_DTYPE_Q4_0, dot)                                                        \
    QUANT_MATMUL(q4_1, MOE_DTYPE_Q4_1, dot)                                                        \
    QUANT_MATMUL(q5_0, MOE_DTYPE_Q5_0, dot)                                                        \
    QUANT_MATMUL(q5_1, MOE_DTYPE_Q5_1, dot)                                                        \
    QUANT_MATMUL(q8_0, MOE_DTYPE_Q8_0, dot)                                                        \
    QUANT_MATMUL(q2_k, MOE_DTYPE_Q2_K, dot)                                                        \
    QUANT_MATMUL(q3_k, MOE_DTYPE_Q3_K, dot)                                                        \
    QUANT_MATMUL(q4_k, MOE_DTYPE_Q4_K, dot)                                                        \
    QUANT_MATMUL(q5_k, MOE_DTYPE_Q5_K, dot)                                                        \
    QUANT_MATMUL(q6_k, MOE_DTYPE_Q6_K, dot)                                                        \
    QUANT_MATMUL(iq4_nl, MOE_DTYPE_IQ4_NL, dot)                                                    \
    QUANT_MATMUL(iq4_xs, MOE_DTYPE_IQ4_XS, dot)                                                    \
    QUANT_MATMUL(mxfp4, MOE_DTYPE_MXFP4, dot)                                                      \
    static void set_quant_matmuls(moe_matmul_kernels *kernels)                                     \
    {                                                                                              \
        kernels->matmul[MOE_DTYPE_Q4_0] = matmul_q4_0;                                             \
        kernels->matmul[MOE_DTYPE_Q4_1] = matmul_q4_1;                                             \
        kernels->matmul[MOE_DTYPE_Q5_0] = matmul_q5_0;                                             \
        kernels->matmul[MOE_DTYPE_Q5_1] = matmul_q5_1;                                             \
        kernels->matmul[MOE_DTYPE_Q8_0] = matmul_q8_0;                                             \
        kernels->matmul[MOE_DTYPE_Q2_K] = matmul_q2_k;                                             \
        kernels->matmul[MOE_DTYPE_Q3_K] = matmul_q3_k;                                             \
        kernels->matmul[MOE_DTYPE_Q4_K] = matmul_q4_k;                                             \
        kernels->matmul[MOE_DTYPE_Q5_K] = matmul_q5_k;                                             \
        kernels->matmul[MOE_DTYPE_Q6_K] = matmul_q6_k;                                             \
        kernels->matmul[MOE_DTYPE_IQ4_NL] = matmul_iq4_nl;                                         \
        kernels->matmul[MOE_DTYPE_IQ4_XS] = matmul_iq4_xs;                                         \
        kernels->matmul[MOE_DTYPE_MXFP4] = matmul_mxfp4;                                           \
    }

#endif
