/* SPDX-License-Identifier: MIT */
/* The multiplication of small matrices of halves by the matrix units, which a whole warp performs
 * together, and the loading of its fragments from shared memory.
 *
 * PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": with g = lane / 4 and t =
 * lane % 4, two halves in a word,
 *
 *     A, 16 rows of k     a[0]: row g,     k = 2t, 2t + 1        a[2]: row g,     k = 8 + 2t ..
 *                         a[1]: row g + 8, the same              a[3]: row g + 8, the same
 *     B, k of 8 columns   b[0]: column g,  k = 2t, 2t + 1        b[1]: column g,  k = 8 + 2t ..
 *     C, 16 rows of 8     c[0], c[1]: row g, columns 2t, 2t + 1  c[2], c[3]: row g + 8
 *
 * So two neighbouring tiles of C, as halves, are the four words of A for the next product.
 * Available since sm_80. An output depends on its row of A, its column of B and its element of C
 * alone. */
#ifndef MOE_CUDA_HALF_UNITS_CUH
#define MOE_CUDA_HALF_UNITS_CUH

#include "cuda/kernels/device_common.h"

/* The emulation has a version of its own. */
#ifndef MOE_MULTIPLY_HALVES
/* c += A B */
#define MOE_MULTIPLY_HALVES(c, a, b0, b1)                                                          \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "            \
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                   \
                 : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])                          \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))
/* Loads four matrices of 8 x 8 halves. Lane 8i + r names the 16 bytes of row r of matrix i, in
 * shared memory. Word i of a thread: two neighbours of matrix i, row lane / 4, columns 2 * (lane %
 * 4) and the next. */
#define MOE_LOAD_MATRICES(out, row)                                                                \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"                \
                 : "=r"((out)[0]), "=r"((out)[1]), "=r"((out)[2]), "=r"((out)[3])                  \
                 : "r"((uint32_t)__cvta_generic_to_shared(row))                                    \
                 : "memory")
/* The same with rows and columns exchanged: column lane / 4, rows 2 * (lane % 4) and the next. */
#define MOE_LOAD_COLUMNS(out, row)                                                                 \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"          \
                 : "=r"((out)[0]), "=r"((out)[1]), "=r"((out)[2]), "=r"((out)[3])                  \
                 : "r"((uint32_t)__cvta_generic_to_shared(row))                                    \
                 : "memory")
#define MOE_PACK_HALVES(out, low, high)                                                            \
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low))
#endif

/* Two floats as halves, rounded to the nearest; `low` comes first in memory. */
__device__ static inline uint32_t moe_pack_halves(float low, float high)
{
    uint32_t pair;
    MOE_PACK_HALVES(pair, low, high);
    return pair;
}

#endif
