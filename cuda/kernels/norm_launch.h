/* SPDX-License-Identifier: MIT */
/* Kernels that fuse the operations before a weight product or before attention. They give the bits
 * of the single operations. Rules for pointers and threads: product_launch.h. */
#ifndef MOE_CUDA_NORM_LAUNCH_H
#define MOE_CUDA_NORM_LAUNCH_H

#include "cpu/kernels/quant_rows.h"
#include "cuda/kernels/vector_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* added = the experts' sum; sum = x + added; y = norm(sum) * weight, also quantised. Rows have n
 * elements, a multiple of MOE_Q8_BLOCK, and lie without gaps. */
typedef struct moe_cuda_fused_norm {
    const float *x;
    const float *added;  /* NULL: the norm is of x, and there is no sum */
    moe_combine combine; /* computes `added`: its y is `added` and no other array of this struct;
                          * weights in device memory. outs NULL: `added` is computed already */
    float *sum;          /* x + added; may be the same array as x or as added */
    const float *weight;
    float *y;        /* an array of its own */
    moe_q8_rows out; /* of y: [n_rows], n_in = n */
    uint32_t n_rows;
    uint32_t n;
    float eps;
} moe_cuda_fused_norm;

void moe_cuda_norm_quantize(moe_cuda_stream stream, const moe_cuda_fused_norm *norm);

/* Prepares the heads of queries and keys for attention, in place: x = norm(x) * weight, then the
 * rotary embedding. Then stores keys and values in the KV cache. */
typedef struct moe_cuda_heads {
    const float *weights[2]; /* of norms of the queries' and keys' heads, [dim]; both NULL: none */
    float eps;
    moe_rope q, k; /* tables in device memory; heads of one size lie side by side */
    uint32_t dim;  /* of a head: the layout's k_dim */
    moe_kv_layout layout;
    const moe_cuda_kv_row *rows;
    const float *v; /* apart from the arrays of q and k */
    size_t v_stride;
    uint32_t n_rows;
} moe_cuda_heads;

void moe_cuda_heads_store(moe_cuda_stream stream, const moe_cuda_heads *heads);

#ifdef __cplusplus
}
#endif

#endif
