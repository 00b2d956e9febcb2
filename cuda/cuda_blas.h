/* SPDX-License-Identifier: MIT */
/* Float products by cuBLAS, on request (--float-gemm blas). Like OpenBLAS on the CPU they leave the
 * contract of exact arithmetic, and serve weights of F32, F16 and BF16 that many rows share.
 *
 * cuBLAS is loaded when a device with the option opens (cuda_blas_load.h). */
#ifndef MOE_CUDA_BLAS_H
#define MOE_CUDA_BLAS_H

#include <cuda_runtime_api.h>

#include "runtime/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cuBLAS takes products of this many rows and more; OpenBLAS has the same limit. */
#define MOE_CUDA_BLAS_ROWS 16u

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
