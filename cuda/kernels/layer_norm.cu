/* SPDX-License-Identifier: MIT */
/* Norms with a mean, by layer_norm of vector_ops.h: one block for each row. Sixteen threads compute
 * the sixteen lanes of both sums and read the row directly, without the staging of rms_norm.cu,
 * because few models have such norms, and a pass has few such rows. The other threads only help to
 * write. */
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define THREADS 256u

__global__ __launch_bounds__(THREADS) void moe_layer_norm_rows(const float *x, const float *weight,
                                                               const float *bias, float *y,
                                                               uint32_t n, size_t stride, float eps)
{
    __shared__ float mean;
    __shared__ float inverse;
    x += blockIdx.x * stride;
    y += blockIdx.x * stride;
    if (threadIdx.x < MOE_WARP) {
        uint32_t lane = threadIdx.x % MOE_LANES;
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t i = lane; i < n; i += MOE_LANES)
            sum += x[i];
        float middle = moe_lanes_sum(sum) / (float)n;
        float squares = 0.0f;
#pragma unroll 8
        for (uint32_t i = lane; i < n; i += MOE_LANES) {
            float d = x[i] - middle;
            squares = fmaf(d, d, squares);
        }
        squares = moe_lanes_sum(squares);
        if (threadIdx.x == 0) {
            mean = middle;
            inverse = 1.0f / sqrtf(squares / (float)n + eps);
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float scaled = (x[i] - mean) * inverse * weight[i];
        y[i] = bias != NULL ? scaled + bias[i] : scaled;
    }
}

void moe_cuda_layer_norm(moe_cuda_stream stream, const float *x, const float *weight,
                         const float *bias, float *y, uint32_t n_rows, uint32_t n, size_t x_stride,
                         float eps)
{
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_layer_norm_rows, n_rows, THREADS, 0, stream, x, weight, bias, y, n, x_stride,
                   eps);
}
