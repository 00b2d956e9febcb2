/* SPDX-License-Identifier: MIT */
/* The multiplication of small matrices of signed bytes, which a whole warp performs together.
 *
 * PTX ISA, "Matrix Fragments for mma.m16n8k32" and "for mma.m16n8k16 with integer type": with g =
 * lane / 4 and t = lane % 4, bytes in ascending order,
 *
 *     A, 16 rows of k     a[0]: row g,     k = 4t .. 4t + 3      a[2]: row g,     k = 16 + 4t ..
 *                         a[1]: row g + 8, the same              a[3]: row g + 8, the same
 *     B, k of 8 columns   b[0]: column g,  k = 4t .. 4t + 3      b[1]: column g,  k = 16 + 4t ..
 *     C, 16 rows of 8     c[0], c[1]: row g, columns 2t, 2t + 1  c[2], c[3]: row g + 8
 *
 * The instruction with k = 16 uses only the left column. Sums are exact in 32 bits. Available since
 * sm_80. */
#ifndef MOE_CUDA_MATRIX_UNITS_CUH
#define MOE_CUDA_MATRIX_UNITS_CUH

#include "cuda/kernels/device_common.h"

/* The emulation has a version of its own. */
#ifndef MOE_MULTIPLY_K32
#define MOE_MULTIPLY_K32(out, a0, a1, a2, a3, b0, b1, c)                                           \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "              \
                 "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"                               \
                 : "=r"((out)[0]), "=r"((out)[1]), "=r"((out)[2]), "=r"((out)[3])                  \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c))
#define MOE_MULTIPLY_K16(out, a0, a1, b0, c)                                                       \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "              \
                 "{%4, %5}, {%6}, {%7, %7, %7, %7};"                                               \
                 : "=r"((out)[0]), "=r"((out)[1]), "=r"((out)[2]), "=r"((out)[3])                  \
                 : "r"(a0), "r"(a1), "r"(b0), "r"(c))
#endif

/* out = A B, with c added to every element. */
__device__ static inline void moe_multiply_k32(const uint32_t *a, const uint32_t *b, int c,
                                               int *out)
{
    MOE_MULTIPLY_K32(out, a[0], a[1], a[2], a[3], b[0], b[1], c);
}

__device__ static inline void moe_multiply_k16(const uint32_t *a, uint32_t b, int c, int *out)
{
    MOE_MULTIPLY_K16(out, a[0], a[1], b, c);
}

#endif
