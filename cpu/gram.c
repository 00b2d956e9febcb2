/* SPDX-License-Identifier: MIT */
#include "cpu/gram.h"

void moe_gram_add_columns(const moe_blas *blas, const float *x, uint32_t n_rows, uint32_t n,
                          float *gram)
{
    blas->ssyrk(MOE_BLAS_ROW_MAJOR, MOE_BLAS_UPPER, MOE_BLAS_TRANSPOSE, (int)n, (int)n_rows, 1.0f,
                x, (int)n, 1.0f, gram, (int)n);
}

void moe_gram_of_rows(const moe_blas *blas, const float *x, uint32_t n_rows, uint32_t n,
                      float *gram)
{
    blas->ssyrk(MOE_BLAS_ROW_MAJOR, MOE_BLAS_UPPER, MOE_BLAS_NO_TRANSPOSE, (int)n_rows, (int)n,
                1.0f, x, (int)n, 0.0f, gram, (int)n_rows);
}

void moe_gram_mirror(float *gram, uint32_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            gram[i * n + j] = gram[j * n + i];
        }
    }
}
