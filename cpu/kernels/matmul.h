/* SPDX-License-Identifier: MIT */
/* Products of weight rows, in the file's own block layout, with activation rows.
 *
 * The arithmetic contract. One output is a sum over a row of n_in elements, in a fixed number of
 * float accumulators ("lanes") that start at +0, whatever the number of rows, the tile shape or the
 * instruction set:
 *   - Quantised weights: a row is cut into runs of elements that share a scale. Runs have 16
 *     elements for Q2_K, Q3_K, Q6_K, IQ1_M, IQ2_XS, IQ2_S, IQn_K and NVFP4, and 32 for all others.
 *     256 elements have 16 or 8 runs, and there is a lane for each: run j belongs to lane j mod 16
 *     or j mod 8. For each run, in order,
 *
 *         s         = exact integer sum of (code value * q) over the run; (float)s is exact
 *         acc[lane] = fmaf(w_scale * x.d, (float)s, acc[lane])          (one rounded product)
 *
 *     and for formats with minima (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K) then
 *
 *         acc[lane] = fmaf(w_min, dsum, acc[lane])
 *
 *     with dsum = x.d * (float)(exact sum of q over the run), see quant_rows.h.
 *     w_scale is d for blocks of 32, and d * (float)sub_scale, one rounded product, for blocks of
 *     256. In MXFP4 and IQ4 code values are the integers of the format's codebook. In IQn_K, IQn_KS
 *     and IQ4_KSS the shift is added to the code value; for IQn_KS and IQ4_KSS w_scale is
 *     (float)sub_scale. In the other types of IQ2, IQ3 and IQ1 code values are the codebook's
 *     magnitudes with their signs (IQ1: eight times the value, plus or minus one), and w_scale is
 *     d * (2 s + 1) times the format's power of two, which is exact.
 *     w_min is m for Q4_1 and Q5_1, and -(dmin * (float)sub_min), one rounded product, for
 *     K-quants.
 *   - Float weights (F32, F16, BF16 widened exactly): 16 lanes, lane l = elements l, l + 16, ...
 *         acc[l] = fmaf(w, x, acc[l])
 *   - Reduction: for h = 8, 4, 2, 1 below the number of lanes: acc[l] += acc[l + h] for l < h.
 *     The result is acc[0]; for types whose rows begin with a scale it is scale * acc[0].
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

/* Matrix units multiply tiles, that is, many activation rows at once. A function for each type
 * first unpacks the blocks of weights: moe_unpack_tiles_fn writes elements k .. k + n - 1 (k a
 * multiple of 256) of 16 weight rows from row o on, or of fewer at the end, to *tiles. */
typedef struct moe_weight_tiles moe_weight_tiles;
typedef void moe_unpack_tiles_fn(const moe_matmul_args *args, uint32_t o, uint32_t k, uint32_t n,
                                 moe_weight_tiles *tiles);
/* scratch: MOE_TILE_SCRATCH_BYTES, 64-byte aligned, with any contents. No other call may use it at
 * the same time. */
typedef void moe_tile_products_fn(const moe_matmul_args *args, moe_unpack_tiles_fn *unpack,
                                  void *scratch);
#define MOE_TILE_ROWS          16u               /* activation rows of a tile */
#define MOE_TILE_ROWS_BYTES    ((size_t)1 << 20) /* of packed activation rows */
#define MOE_TILE_SCRATCH_BYTES (MOE_TILE_ROWS_BYTES + ((size_t)320 << 10))
#define MOE_TILE_MAX_N_IN      32768u /* too few longer rows would fit MOE_TILE_ROWS_BYTES */

typedef struct moe_matmul_kernels {
    moe_matmul_fn matmul[MOE_DTYPE_LIMIT];         /* NULL for numbers without a type */
    moe_dequantize_fn dequantize[MOE_DTYPE_LIMIT]; /* bit-equal to the format's definition */
    /* Quantises rows x[0..n_rows) into rows first_row .. of out. */
    moe_quantize_rows_fn quantize_rows;
    moe_tile_products_fn *tile_products; /* NULL: there is no matrix unit */
    moe_unpack_tiles_fn *unpack_tiles[MOE_DTYPE_LIMIT];
    /* The matrix unit is faster if activation rows fill at least this percentage of their tiles of
     * MOE_TILE_ROWS. */
    uint8_t min_tile_fill[MOE_DTYPE_LIMIT];
} moe_matmul_kernels;

/* Fills the table with reference C, then overrides entries with the faster kernels that
 * cpu_features (moe_cpu_features() or a subset of it) allows. */
void moe_matmul_kernels_init(moe_matmul_kernels *kernels, unsigned cpu_features);

/* Computes the products with the table's fastest function for their number of rows. tile_scratch:
 * the scratch of moe_tile_products_fn; NULL: does not use the matrix unit. */
void moe_matmul_run(const moe_matmul_kernels *kernels, const moe_matmul_args *args,
                    void *tile_scratch);

#endif
