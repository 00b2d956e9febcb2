/* SPDX-License-Identifier: MIT */
/* Loads cuBLAS at run time. The build does not need it: its few functions are declared here, by the
 * binary interface that it has kept since CUDA 4. */
#ifndef MOE_CUDA_BLAS_LOAD_H
#define MOE_CUDA_BLAS_LOAD_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOE_CUBLAS_N 0 /* CUBLAS_OP_N */
#define MOE_CUBLAS_T 1 /* CUBLAS_OP_T */

/* Functions of cuBLAS. They return 0 or a cublasStatus_t. */
typedef struct moe_cuda_blas_api {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    /* Matrices are stored by columns: c (m x n) = alpha * op(a) (m x k) * op(b) (k x n) + beta * c;
     * alpha and beta are host memory, read before the call returns. */
    int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                 int ldc);
} moe_cuda_blas_api;

/* Tries the known file names of cuBLAS in order, from number *next on, and loads the first that
 * exists. It stays loaded. *next becomes the number of the following name, so that a caller can go
 * on from there if this cuBLAS does not work (the driver may be too old for it).
 * MOE_ERR_UNSUPPORTED, with a remedy, if there is none. */
int moe_cuda_blas_load(moe_cuda_blas_api *out, size_t *next, moe_error *err);
/* Like moe_cuda_blas_load(), with these n files. */
int moe_cuda_blas_load_from(moe_cuda_blas_api *out, const char *const *files, size_t n,
                            size_t *next, moe_error *err);

#ifdef __cplusplus
}
#endif

#endif
