/* SPDX-License-Identifier: MIT */
/* Parts that products of quantised weights need with every instruction set: where rows are, and
 * whole groups at the end of a row. A group is 256 elements of a row (MOE_GROUP); a run is the 16
 * or 32 elements that share a scale. */
#ifndef MOE_X86_QUANT_ROWS_X86_H
#define MOE_X86_QUANT_ROWS_X86_H

#include "cpu/kernels/matmul.h"
#include "cpu/x86/quant_types.h"

#include <immintrin.h>

/* One activation row from element k (a multiple of 256) on: its codes, and for each run of the
 * weights' type the sum of codes, and d times that sum. */
typedef struct x_row {
    const int8_t *q;
    const float *d; /* by 32 elements */
    const int32_t *sum;
    const float *dsum;
} x_row;

MOE_INLINE x_row x_row_of(const moe_matmul_args *args, uint32_t r, uint32_t k, uint32_t run)
{
    const moe_q8_rows *x = args->x_q8;
    const size_t row = args->x_index != NULL ? args->x_index[r] : r;
    const size_t at = row * x->n_in_padded + k;
    return (x_row){x->q + at, x->d + at / 32, (run == 16 ? x->sum16 : x->sum32) + at / run,
                   (run == 16 ? x->dsum16 : x->dsum32) + at / run};
}

/* Weight row o. A number beyond the last row gives the last row. */
MOE_INLINE const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

MOE_INLINE float *out_row(const moe_matmul_args *args, uint32_t r)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride;
}

MOE_INLINE size_t group_bytes_of(moe_dtype type)
{
    const quant_type t = quant_type_of(type);
    return MOE_GROUP / t.block_elems * t.block_bytes;
}

/* Room for a group whose blocks of 32 extend beyond the row's end. */
typedef struct group_copy {
    _Alignas(16) uint8_t bytes[8 * sizeof(moe_block_q8_0)];
} group_copy;

/* The group at `blocks`, with n_elems elements left in the row. If the row ends within the group,
 * copies the group to `copy` and fills it up with blocks whose scales and minima are negative.
 * Multiplied with the zeros of the activations' padding they give -0, and adding -0 changes no bit.
 * Reads nothing behind the row. */
MOE_INLINE const uint8_t *whole_group(moe_dtype type, const uint8_t *blocks, uint32_t n_elems,
                                      group_copy *copy)
{
    const quant_type t = quant_type_of(type);
    if (t.block_elems == MOE_GROUP || n_elems >= MOE_GROUP) {
        return blocks;
    }
    memset(copy->bytes, 0x80, sizeof copy->bytes);
    memcpy(copy->bytes, blocks, n_elems / t.block_elems * t.block_bytes);
    return copy->bytes;
}

/* Prefetches as many bytes as a group has. They begin `prefetch` bytes after the begin of `group`.
 */
MOE_INLINE void prefetch_group(moe_dtype type, const uint8_t *group, size_t prefetch)
{
    for (size_t line = 0; line < group_bytes_of(type); line += 64) {
        _mm_prefetch((const char *)group + prefetch + line, _MM_HINT_T0);
    }
}

/* moe_e8m0_half_bits() of eight bytes, each in a word: (e - 1) << 23, or a subnormal if e < 2. */
MOE_INLINE __m256 eight_e8m0_halves(__m256i e)
{
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, is_subnormal));
}

#endif
