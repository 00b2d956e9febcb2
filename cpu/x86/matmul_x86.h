/* SPDX-License-Identifier: MIT */
/* The functions with which each instruction set's files fill the kernel table. */
#ifndef MOE_X86_MATMUL_X86_H
#define MOE_X86_MATMUL_X86_H

#include "cpu/kernels/matmul.h"
#include "cpu/kernels/row_scales.h"

void moe_quantize_init_avx2(moe_matmul_kernels *kernels);

/* Float weights. */
void moe_matmul_init_float_avx2(moe_matmul_kernels *kernels);
void moe_matmul_init_float_avx512(moe_matmul_kernels *kernels);

/* Quantised weights: lists that call X(name, TYPE, with) for each type of a family. The families
 * are: blocks of 32 whose codes have 4 or 5 bits, or whose codes stand for bytes; blocks of 256
 * with runs of 32, or with runs of 16 (a run is the elements that share a scale); types that store
 * several weights as one point of a codebook, with about 2, 3 or 1.5 bits for a weight; ternary
 * types together with NVFP4. */
#define MOE_QUANT_TYPES_32(X, with)                                                                \
    X(q4_0, Q4_0, with)                                                                            \
    X(q4_1, Q4_1, with)                                                                            \
    X(q5_0, Q5_0, with)                                                                            \
    X(q5_1, Q5_1, with)
#define MOE_QUANT_TYPES_BYTES(X, with)                                                             \
    X(q8_0, Q8_0, with)                                                                            \
    X(iq4_nl, IQ4_NL, with)                                                                        \
    X(mxfp4, MXFP4, with)
#define MOE_QUANT_TYPES_256(X, with)                                                               \
    X(q4_k, Q4_K, with)                                                                            \
    X(q5_k, Q5_K, with)                                                                            \
    X(iq4_xs, IQ4_XS, with)
#define MOE_QUANT_TYPES_256_16(X, with)                                                            \
    X(q2_k, Q2_K, with)                                                                            \
    X(q3_k, Q3_K, with)                                                                            \
    X(q6_k, Q6_K, with)
#define MOE_QUANT_TYPES_IQ2(X, with)                                                               \
    X(iq2_xxs, IQ2_XXS, with)                                                                      \
    X(iq2_xs, IQ2_XS, with)                                                                        \
    X(iq2_s, IQ2_S, with)
#define MOE_QUANT_TYPES_IQ3(X, with)                                                               \
    X(iq3_xxs, IQ3_XXS, with)                                                                      \
    X(iq3_s, IQ3_S, with)
#define MOE_QUANT_TYPES_IQ1(X, with)                                                               \
    X(iq1_s, IQ1_S, with)                                                                          \
    X(iq1_m, IQ1_M, with)
#define MOE_QUANT_TYPES_TERNARY(X, with)                                                           \
    X(tq1_0, TQ1_0, with)                                                                          \
    X(tq2_0, TQ2_0, with)                                                                          \
    X(nvfp4, NVFP4, with)

/* Types in which one bit of each run shifts the run's codes: with runs of 16, and with runs of 32,
 * whose rows begin with a scale. */
#define MOE_QUANT_TYPES_SHIFTED_16(X, with)                                                        \
    X(iq2_k, IQ2_K, with)                                                                          \
    X(iq3_k, IQ3_K, with)                                                                          \
    X(iq4_k, IQ4_K, with)                                                                          \
    X(iq5_k, IQ5_K, with)                                                                          \
    X(iq6_k, IQ6_K, with)
#define MOE_QUANT_TYPES_SHIFTED_32(X, with)                                                        \
    X(iq2_ks, IQ2_KS, with)                                                                        \
    X(iq3_ks, IQ3_KS, with)                                                                        \
    X(iq4_ks, IQ4_KS, with)                                                                        \
    X(iq4_kss, IQ4_KSS, with)                                                                      \
    X(iq5_ks, IQ5_KS, with)

/* Defines a function for each type, in which the type is a constant, and its entry in the table.
 * (For one function with the loops of all types inlined, compilers need minutes and gigabytes.) */
#define MOE_QUANT_MATMUL(name, TYPE, multiply)                                                     \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        multiply(MOE_DTYPE_##TYPE, args);                                                          \
    }
/* For types whose rows begin with a scale. */
#define MOE_ROW_SCALED_MATMUL(name, TYPE, multiply)                                                \
    static void matmul_##name(const moe_matmul_args *args)                                         \
    {                                                                                              \
        const moe_matmul_args blocks = moe_matmul_behind_heads(args);                              \
        multiply(MOE_DTYPE_##TYPE, &blocks);                                                       \
        moe_matmul_scale_outputs(args);                                                            \
    }
#define MOE_SET_QUANT_MATMUL(name, TYPE, kernels)                                                  \
    (kernels)->matmul[MOE_DTYPE_##TYPE] = matmul_##name;

void moe_matmul_init_avx2_32(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_bytes(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_256(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_256_16(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_iq2(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_iq3(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_iq1(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_ternary(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_shifted_16(moe_matmul_kernels *kernels);
void moe_matmul_init_avx2_shifted_32(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_32(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_bytes(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_256(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_256_16(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_iq2(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_iq3(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_iq1(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_ternary(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_shifted_16(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni_shifted_32(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_32(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_bytes(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_256(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_256_16(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_iq2(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_iq3(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_iq1(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_ternary(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_shifted_16(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_shifted_32(moe_matmul_kernels *kernels);

/* The matrix unit, for types whose files of AVX-512 VNNI unpack weights for it. */
void moe_matmul_init_amx(moe_matmul_kernels *kernels);

#endif
