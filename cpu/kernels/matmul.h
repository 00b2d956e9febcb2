/* SPDX-License-Identifier: MIT */
/* Products of weight rows, in the file's own block layout, with activation rows.
 *
 * The arithmetic contract. One output is a sum over a row of n_in elements, in 16 float
 * accumulators ("lanes"), whatever the number of rows, the tile shape or the instruction set:
 *   - Elements are taken in chunks of 64. Lane l (0..15) of chunk c covers the four elements
 *     64c + 4l .. 64c + 4l + 3. A row that ends in half a chunk leaves lanes 8..15 untouched there.
 *   - Quantised weights: s = exact integer sum of (code value * q) over the four elements (for
 * codes with an offset: the offset already subtracted), then acc[l] = fmaf(scale, (float)s,
 * acc[l]),  scale = w_scale * x.d   (one rounded product) w_scale is the weight's own scale for
 * those elements: d for the 32-blocks; for K-quants d * (float)sub_scale, one rounded product; for
 * MXFP4 and IQ4 the codebook is the integers of the format and d the block's scale.
 *   - Formats with minima (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) add a second set of 16 accumulators over
 *     sub-blocks j (of 16 elements for Q2_K, 32 otherwise), in order. Sub-block j of a row belongs
 * to the lane that is its number within its 256 elements: j mod 16 for Q2_K, j mod 8 otherwise
 *     (lanes 8..15 stay +0):
 *         min_acc[lane] = fmaf(w_min, x.dsum_j, min_acc[lane])
 *     with w_min = m for Q4_1/Q5_1, -(dmin * (float)sub_min), one rounded product, for K-quants,
 * and dsum_j = x.d * (float)sum_j, sum_j the exact sum of q over the sub-block (quant_rows.h).
 *   - Float weights (F32, F16, BF16 widened exactly): chunks of 16, lane l = element 16c + l,
 *         acc[l] = fmaf(w, x, acc[l]);   a tail shorter than 16 leaves the upper lanes untouched.
 *   - Reduction: for h = 8, 4, 2, 1: acc[l] += acc[l + h] for l < h. Result acc[0]; for formats
 *     with minima acc[0] + min_acc[0], both reduced so.
 * Compiled with -ffp-contract=off; subnormals are kept. */
#ifndef MOE_CPU_MATMUL_H
#define MOE_CPU_MATMUL_H

#include "cpu/kernels/quant_rows.h"
#include "runtime/base/dtype.h"

typedef struct moe_matmul_args {
    moe_dtype type;
    const void *weights; /* n_out rows; no alignment promised beyond 2 (MXFP4: 1) */
    size_t row_bytes;    /* from row to row: the bytes of n_in elements, or more */
    uint32_t n_in;       /* a multiple of the type's block; 0 gives zeros */
    uint32_t n_out;
    uint32_t n_rows;         /* activation rows */
    const moe_q8_rows *x_q8; /* for quantised weights */
    const float *x;          /* for float weights: [..][x_stride] */
    size_t x_stride;
    const uint32_t *x_index;   /* row r reads activation row x_index[r]; NULL: r */
    const uint32_t *out_index; /* row r writes output row out_index[r]; NULL: r */
    float *out;                /* [..][out_stride]; out[o] of a row = weight row o . x row */
    size_t out_stride;         /* in floats */
} moe_matmul_args;

typedef void (*moe_matmul_fn)(const moe_matmul_args *args);
typedef void (*moe_dequantize_fn)(const void *row, float *out, uint32_t n);
typedef void (*moe_quantize_rows_fn)(const float *x, size_t x_stride, uint32_t n_rows,
                                     uint32_t n_in, moe_q8_rows *out, uint32_t first_row);

typedef struct moe_matmul_kernels {
    moe_matmul_fn matmul[MOE_DTYPE_LIMIT];         /* NULL for numbers that are no type */
    moe_dequantize_fn dequantize[MOE_DTYPE_LIMIT]; /* bit-equal to the format's definition */
    /* Rows x[0..n_rows) to out rows first_row.. */
    moe_quantize_rows_fn quantize_rows;
} moe_matmul_kernels;

/* Fills the table with reference C, then overrides with what cpu_features (moe_cpu_features() or a
 * subset of it) allows. */
void moe_matmul_kernels_init(moe_matmul_kernels *kernels, unsigned cpu_features);

#endif
