/* SPDX-License-Identifier: MIT */
#include "cpu/gram.h"

#include <cblas.h>

void moe_gram_add_columns(const float *x, uint32_t n_rows, uint32_t n, float *gram)
{
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)n, (int)n_rows, 1.0f, x, (int)n, 1.0f,
                gram, (int)n);
}

void moe_gram_of_rows(const float *x, uint32_t n_rows, uint32_t n, float *gram)
{
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, (int)n_rows, (int)n, 1.0f, x, (int)n, 0.0f,
                gram, (int)n_rows);
}

void moe_gram_mirror(float *gram, uint32_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            gram[i * n + j] = gram[j * n + i];
        }
    }
}
