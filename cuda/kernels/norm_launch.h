/* SPDX-License-Identifier: MIT */
/* What precedes a weight product, as one kernel: addition, norm, quantisation. The bits are those
 * of the single operations. Rules for pointers and threads: product_launch.h. */
#ifndef MOE_CUDA_NORM_LAUNCH_H
#define MOE_CUDA_NORM_LAUNCH_H

#include "cpu/kernels/quant_rows.h"
#include "cuda/kernels/vector_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* sum = x + added; y = norm(sum) * weight, and that quantised too. Rows of n, a multiple of
 * MOE_Q8_BLOCK, without gaps. */
typedef struct moe_cuda_fused_norm {
    const float *x;
    const float *added; /* NULL: the norm is of x, and there is no sum */
    float *sum;         /* may be x or added */
    const float *weight;
    float *y;        /* none of the above */
    moe_q8_rows out; /* of y: [n_rows], n_in = n */
    uint32_t n_rows;
    uint32_t n;
    float eps;
} moe_cuda_fused_norm;

void moe_cuda_norm_quantize(moe_cuda_stream stream, const moe_cuda_fused_norm *norm);

#ifdef __cplusplus
}
#endif

#endif
