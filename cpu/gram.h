/* SPDX-License-Identifier: MIT */
/* Gram matrices by OpenBLAS, for calibration. The last bits depend on OpenBLAS's version and number
 * of threads. blas must be loaded. */
#ifndef MOE_CPU_GRAM_H
#define MOE_CPU_GRAM_H

#include <stddef.h>
#include <stdint.h>

#include "cpu/blas_load.h"

/* gram += x^T x; x: [n_rows][n], gram: [n][n], of which only i <= j is written. */
void moe_gram_add_columns(const moe_blas *blas, const float *x, uint32_t n_rows, uint32_t n,
                          float *gram);

/* gram = x x^T; x: [n_rows][n], gram: [n_rows][n_rows], of which only i <= j is written. */
void moe_gram_of_rows(const moe_blas *blas, const float *x, uint32_t n_rows, uint32_t n,
                      float *gram);

/* gram[j][i] = gram[i][j] for i < j. */
void moe_gram_mirror(float *gram, uint32_t n);

#endif
