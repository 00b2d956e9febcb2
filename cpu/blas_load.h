/* SPDX-License-Identifier: MIT */
/* OpenBLAS, loaded on first use and never linked, because most processes do not need it. On loading
 * it starts a thread for every core. If threads cannot be started, for instance because the address
 * space is limited to 100 MB, it keeps trying for ever. */
#ifndef MOE_CPU_BLAS_LOAD_H
#define MOE_CPU_BLAS_LOAD_H

#include <moe/status.h>

#include <stddef.h>

/* The values of cblas.h, repeated so that the build does not need that header. */
enum moe_blas_choice {
    MOE_BLAS_ROW_MAJOR = 101,
    MOE_BLAS_NO_TRANSPOSE = 111,
    MOE_BLAS_TRANSPOSE = 112,
    MOE_BLAS_UPPER = 121
};

/* All NULL until loaded. Callable from any thread. */
typedef struct moe_blas {
    /* c = alpha * op(a) op(b) + beta * c; op(a): [m][k], op(b): [k][n], c: [m][n] */
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                  const float *a, int stride_a, const float *b, int stride_b, float beta, float *c,
                  int stride_c);
    /* c = alpha * op(a) op(a)^T + beta * c, of one triangle; op(a): [n][k], c: [n][n] */
    void (*ssyrk)(int order, int triangle, int transpose, int n, int k, float alpha, const float *a,
                  int stride_a, float beta, float *c, int stride_c);
} moe_blas;

/* MOE_ERR_UNSUPPORTED if OpenBLAS is not installed. It stays loaded. */
int moe_blas_load(moe_blas *out, moe_error *err);
/* Loads the first of these files that can be loaded. */
int moe_blas_load_from(moe_blas *out, const char *const *files, size_t n, moe_error *err);

#endif
