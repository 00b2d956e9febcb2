/* SPDX-License-Identifier: MIT */
/* Float products by cuBLAS, on request (--float-gemm blas): as OpenBLAS on the CPU they leave the
 * contract of exact arithmetic, and are for weights of F32, F16 and BF16 that many rows share.
 *
 * cuBLAS is loaded when a device with the option opens, and is no part of the build: its few
 * functions are declared here, by the binary interface that it has kept since CUDA 4. */
#ifndef MOE_CUDA_BLAS_H
#define MOE_CUDA_BLAS_H

#include <cuda_runtime_api.h>

#include "runtime/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From so many rows on; OpenBLAS has the same. */
#define MOE_CUDA_BLAS_ROWS 16u

#define MOE_CUBLAS_N 0 /* CUBLAS_OP_N */
#define MOE_CUBLAS_T 1 /* CUBLAS_OP_T */

/* Functions of cuBLAS. They return 0 or a cublasStatus_t. */
typedef struct moe_cuda_blas_api {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    /* By columns: c (m x n) = alpha * op(a) (m x k) * op(b) (k x n) + beta * c; alpha and beta are
     * host memory, read before the call returns. */
    int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                 int ldc);
} moe_cuda_blas_api;

/* Finds cuBLAS; it stays loaded. MOE_ERR_UNSUPPORTED, with a remedy, when there is none. */
int moe_cuda_blas_load(moe_cuda_blas_api *out, moe_error *err);
/* The same from the first of these files that can be opened. */
int moe_cuda_blas_load_from(moe_cuda_blas_api *out, const char *const *files, size_t n,
                            moe_error *err);

typedef struct moe_cuda_blas moe_cuda_blas;

/* A context on the stream, and scratch. Of the thread's device. */
int moe_cuda_blas_open(moe_cuda_blas **out, cudaStream_t stream, moe_error *err);
void moe_cuda_blas_close(moe_cuda_blas **blas); /* NULL is allowed */

/* out[r][o] = weight row o . x[r], plus bias[o] unless bias is NULL. x, out: strides in floats. */
typedef struct moe_cuda_blas_product {
    const moe_weight *weight; /* device, of floats */
    const float *x;           /* device */
    size_t x_stride;
    const float *bias; /* device, or NULL */
    float *out;        /* device */
    size_t out_stride;
    uint32_t n_rows;
} moe_cuda_blas_product;

/* Whether a product is one for cuBLAS; blas may be NULL. */
bool moe_cuda_blas_takes(const moe_cuda_blas *blas, const moe_weight *weight, uint32_t n_rows);
/* Queues it. Failures of launches show in cudaGetLastError(), as those of kernels. */
int moe_cuda_blas_run(moe_cuda_blas *blas, const moe_cuda_blas_product *product, moe_error *err);

#ifdef __cplusplus
}
#endif

#endif
