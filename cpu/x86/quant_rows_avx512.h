/* SPDX-License-Identifier: MIT */
/* What both ways of AVX-512 products (quant_direct_avx512.h, quant_panel_avx512.h) need of their
 * arguments. */
#ifndef MOE_X86_QUANT_ROWS_AVX512_H
#define MOE_X86_QUANT_ROWS_AVX512_H

#include "cpu/kernels/matmul.h"
#include "cpu/x86/quant_unpack_avx512.h"

/* One activation row from element k (a multiple of 256) on: its codes, and by run of the weights'
 * type the sums of codes and d times them. */
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

/* Rows past the last are the last. */
MOE_INLINE const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

/* Room for a group of blocks of 32 that a row does not have all of. */
typedef struct group_copy {
    uint8_t bytes[8 * sizeof(moe_block_q8_0)];
} group_copy;

/* Group g of a weight row of n elements. Of a group that is cut short, a copy filled up with zeros,
 * so that nothing behind the row is read; activations are padded with zeros as well. */
MOE_INLINE const uint8_t *group_of(moe_dtype type, const uint8_t *weights, size_t g, uint32_t n,
                                   group_copy *copy)
{
    const quant_type t = quant_type_of(type);
    const uint8_t *group = weights + g * (MOE_GROUP / t.block_elems * t.block_bytes);
    if (t.block_elems == MOE_GROUP || (g + 1) * MOE_GROUP <= n) {
        return group;
    }
    memset(copy, 0, sizeof *copy);
    memcpy(copy, group, n % MOE_GROUP / 32 * t.block_bytes);
    return copy->bytes;
}

MOE_INLINE float *out_row(const moe_matmul_args *args, uint32_t r)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride;
}

#endif
