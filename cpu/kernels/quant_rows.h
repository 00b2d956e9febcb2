/* SPDX-License-Identifier: MIT */
/* Activations quantised to 8 bits, for products with quantised weights.
 *
 * Contract (the same bits in reference C, AVX2, AVX-512 and CUDA): a row is cut into blocks of 32.
 *   amax  = max |x_i| of the block
 *   d     = amax / 127                       (one IEEE float division)
 *   id    = amax > 0 ? 127 / amax : 0        (one IEEE float division; 0 too when it overflows)
 *   q_i   = (int8) round_to_nearest_even(x_i * id)
 * sum16 and sum32 are the exact sums of 16 and 32 q. Unsigned weight codes need them:
 * (code - offset) . q = code . q - offset * sum(q). dsum16 and dsum32 are d * (float)sum, one
 * rounded product; they are multiplied with a type's minima. x is finite; for infinities and NaNs q
 * is unspecified. */
#ifndef MOE_CPU_QUANT_ROWS_H
#define MOE_CPU_QUANT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_Q8_BLOCK 32

/* Storage for n_rows rows. Every array starts on a 64-byte boundary. A row's q is padded with zeros
 * to a multiple of 256 elements, so that whole vectors may be read; the other arrays are padded
 * accordingly. Code that fills a row also writes its padding. */
typedef struct moe_q8_rows {
    uint32_t n_rows;
    uint32_t n_in;        /* elements of a row; a multiple of 32 */
    uint32_t n_in_padded; /* rounded up to a multiple of 256: the stride of q */
    int8_t *q;            /* [n_rows][n_in_padded] */
    float *d;             /* [n_rows][n_in_padded / 32] */
    int32_t *sum16;       /* [n_rows][n_in_padded / 16] */
    int32_t *sum32;       /* [n_rows][n_in_padded / 32] */
    float *dsum16;        /* [n_rows][n_in_padded / 16] */
    float *dsum32;        /* [n_rows][n_in_padded / 32] */
} moe_q8_rows;

/* Bytes of scratch that n_rows rows of n_in take. */
size_t moe_q8_rows_bytes(uint32_t n_rows, uint32_t n_in);
/* Lays the arrays out in scratch (64-byte aligned, at least moe_q8_rows_bytes()). */
void moe_q8_rows_bind(moe_q8_rows *rows, void *scratch, uint32_t n_rows, uint32_t n_in);

/* Where the parts of one row are. */
typedef struct moe_q8_row {
    int8_t *q;
    float *d;
    int32_t *sum16;
    int32_t *sum32;
    float *dsum16;
    float *dsum32;
} moe_q8_row;

/* For the quantisers: writes zeros to the padding of a row and returns the row's parts. */
moe_q8_row moe_q8_row_clear_padding(moe_q8_rows *rows, size_t row);

#ifdef __cplusplus
}
#endif

#endif
