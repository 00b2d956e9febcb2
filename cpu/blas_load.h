/* SPDX-License-Identifier: MIT */
/* OpenBLAS, loaded when it is first asked for and never linked. It starts a thread for every core
 * as soon as it is in a process, and where threads cannot be had (an address space of 100 MB) it
 * tries for ever; most processes have no use for it. */
#ifndef MOE_CPU_BLAS_LOAD_H
#define MOE_CPU_BLAS_LOAD_H

#include <moe/status.h>

#include <stddef.h>

/* Of cblas.h, whose header is not needed for it. */
enum moe_blas_choice {
    MOE_BLAS_ROW_MAJOR = 101,
    MOE_BLAS_NO_TRANSPOSE = 111,
    MOE_BLAS_TRANSPOSE = 112,
    MOE_BLAS_UPPER = 121
};

/* All NULL: not loaded. Callable from any thread. */
typedef struct moe_blas {
    /* c = alpha * op(a) op(b) + beta * c; op(a): [m][k], op(b): [k][n], c: [m][n] */
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                  const float *a, int stride_a, const float *b, int stride_b, float beta, float *c,
                  int stride_c);
    /* c = alpha * op(a) op(a)^T + beta * c, of one triangle; op(a): [n][k], c: [n][n] */
    void (*ssyrk)(int order, int triangle, int transpose, int n, int k, float alpha, const float *a,
                  int stride_a, float beta, float *c, int stride_c);
} moe_blas;

/* MOE_ERR_UNSUPPORTED where it is not installed. It stays in the process. */
int moe_blas_load(moe_blas *out, moe_error *err);
/* From the first of these files that can be loaded. */
int moe_blas_load_from(moe_blas *out, const char *const *files, size_t n, moe_error *err);

#endif
