/* SPDX-License-Identifier: MIT */
/* Float products by cuBLAS, on request (--float-gemm blas). Like OpenBLAS on the CPU they leave the
 * contract of exact arithmetic, and serve weights of F32, F16 and BF16 that many rows share.
 *
 * cuBLAS is loaded when a device with the option opens, and the build does not need it: its few
 * functions are declared here, by the binary interface that it has kept since CUDA 4. */
#ifndef MOE_CUDA_BLAS_H
#define MOE_CUDA_BLAS_H

#include <cuda_runtime_api.h>

#include "runtime/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cuBLAS takes products of this many rows and more; OpenBLAS has the same limit. */
#define MOE_CUDA_BLAS_ROWS 16u

#define MOE_CUBLAS_N 0 /* CUBLAS_OP_N */
#define MOE_CUBLAS_T 1 /* CUBLAS_OP_T */

/* Functions of cuBLAS. They return 0 or a cublasStatus_t. */
typedef struct moe_cuda_blas_api {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    /* Matrices by columns: c (m x n) = alpha * op(a) (m x k) * op(b) (k x n) + beta * c; alpha and
     * beta are host memory, read before the call returns. */
    int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                 int ldc);
} moe_cuda_blas_api;

/* Finds and loads cuBLAS, which stays loaded. MOE_ERR_UNSUPPORTED, with a remedy, if there is none.
 */
int moe_cuda_blas_load(moe_cuda_blas_api *out, moe_error *err);
/* Does so with the first of these files that can be opened. */
int moe_cuda_blas_load_from(moe_cuda_blas_api *out, const char *const *files, size_t n,
                            moe_error *err);

typedef struct moe_cuda_blas moe_cuda_blas;

/* Opens a context on the stream of the thread's device, and scratch. */
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

/* Whether cuBLAS should compute this product; blas may be NULL. */
bool moe_cuda_blas_takes(const moe_cuda_blas *blas, const moe_weight *weight, uint32_t n_rows);
/* Queues the product. Failed launches show in cudaGetLastError(), as those of kernels do. */
int moe_cuda_blas_run(moe_cuda_blas *blas, const moe_cuda_blas_product *product, moe_error *err);

#ifdef __cplusplus
}
#endif

#endif
