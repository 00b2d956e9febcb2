/* SPDX-License-Identifier: MIT */
/* What both ways of multiplying in quant_tiles_avx2.h share: where rows are, whole groups at the
 * end of a row, and the bounds of codes. */
#ifndef MOE_X86_QUANT_ROWS_AVX2_H
#define MOE_X86_QUANT_ROWS_AVX2_H

#include "cpu/x86/matmul_x86.h"
#include "cpu/x86/quant_unpack_avx2.h"

#include <stdbool.h>

/* What the instruction sets differ in: start + the sums of four products of any unsigned codes with
 * q; NULL without VNNI. Inlined as a constant. */
typedef __m256i (*vnni_dot)(__m256i start, __m256i codes, __m256i q);

/* One activation row from element k (a multiple of 256) on. */
typedef struct x_row {
    const int8_t *q;
    const float *d;
    const int32_t *sum; /* by run */
    const float *dsum;
} x_row;

static x_row x_row_of(const moe_matmul_args *args, uint32_t r, uint32_t k)
{
    const moe_q8_rows *x = args->x_q8;
    const size_t row = args->x_index != NULL ? args->x_index[r] : r;
    const size_t at = row * x->n_in_padded + k;
    const bool is_16 = quant_type_of(args->type).run == 16;
    return (x_row){.q = x->q + at,
                   .d = x->d + at / 32,
                   .sum = is_16 ? x->sum16 + at / 16 : x->sum32 + at / 32,
                   .dsum = is_16 ? x->dsum16 + at / 16 : x->dsum32 + at / 32};
}

static float *out_row(const moe_matmul_args *args, uint32_t r)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride;
}

static const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    const uint32_t row = o < args->n_out ? o : args->n_out - 1;
    return (const uint8_t *)args->weights + row * args->row_bytes;
}

MOE_INLINE bool codes_are_signed(moe_dtype type, vnni_dot dot)
{
    return dot == NULL && quant_type_of(type).offset_shift == 7;
}

/* What every code is above its value. */
MOE_INLINE bool has_offset(moe_dtype type, vnni_dot dot)
{
    return quant_type_of(type).offset_shift >= 0 && !codes_are_signed(type, dot);
}

/* Magnitude of the largest code. */
MOE_INLINE int max_code(moe_dtype type)
{
    switch (type) {
    case MOE_DTYPE_Q2_K:
        return 3;
    case MOE_DTYPE_Q3_K:
        return 7;
    case MOE_DTYPE_Q4_0:
    case MOE_DTYPE_Q4_1:
    case MOE_DTYPE_Q4_K:
        return 15;
    case MOE_DTYPE_MXFP4:
        return MXFP4_OFFSET + 12;
    case MOE_DTYPE_Q5_0:
    case MOE_DTYPE_Q5_1:
    case MOE_DTYPE_Q5_K:
        return 31;
    case MOE_DTYPE_Q6_K:
        return 63;
    default:
        return 255;
    }
}

/* How many products of such a code with an activation, of at most 127, a 16-bit word holds. */
MOE_INLINE int products_in_16_bits(moe_dtype type, vnni_dot dot)
{
    return 32767 / 127 / (codes_are_signed(type, dot) ? 128 : max_code(type));
}

/* A whole group: the blocks of a row's last one in `copy` before blocks whose scales and minima are
 * negative, which with the zeros of the activations make -0: added, that changes no bit. */
MOE_INLINE const uint8_t *whole_group(moe_dtype type, const uint8_t *blocks, uint32_t n_elems,
                                      uint8_t *copy)
{
    const quant_type t = quant_type_of(type);
    if (n_elems >= MOE_GROUP) {
        return blocks;
    }
    memset(copy, 0x80, MOE_GROUP / t.block_elems * t.block_bytes);
    memcpy(copy, blocks, n_elems / t.block_elems * t.block_bytes);
    return copy;
}

enum { MAX_GROUP_BYTES = 8 * sizeof(moe_block_q8_0) };

MOE_INLINE __m256i pairs_of_words(__m256i words)
{
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

/* Asks for what is `prefetch` bytes behind a group. */
MOE_INLINE void prefetch_group(moe_dtype type, const uint8_t *group, size_t prefetch)
{
    const quant_type t = quant_type_of(type);
    const size_t group_bytes = MOE_GROUP / t.block_elems * t.block_bytes;
    for (size_t line = 0; line < group_bytes; line += 64) {
        _mm_prefetch((const char *)group + prefetch + line, _MM_HINT_T0);
    }
}

#endif
