/* SPDX-License-Identifier: MIT */
/* Operations of the device contract that work on single elements or rows. */
#include "cuda/kernels/combine.cuh"
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/softplus.cuh"

#define THREADS 256u

__device__ static inline size_t element(void)
{
    return (size_t)blockIdx.x * THREADS + threadIdx.x;
}

__global__ __launch_bounds__(THREADS) void moe_clamp_elements(float limit, float *x, size_t n)
{
    size_t i = element();
    if (i >= n)
        return;
    float value = x[i];
    value = value > limit ? limit : value;
    x[i] = value < -limit ? -limit : value;
}

__global__ __launch_bounds__(THREADS) void moe_scale_elements(float factor, float *x, size_t n)
{
    size_t i = element();
    if (i < n)
        x[i] = factor * x[i];
}

__global__ __launch_bounds__(THREADS) void moe_add_elements(const float *a, const float *b,
                                                            float *y, size_t n)
{
    size_t i = element();
    if (i < n)
        y[i] = a[i] + b[i];
}

__global__ __launch_bounds__(THREADS) void moe_soft_cap_elements(float cap, float *x, size_t n)
{
    size_t i = element();
    if (i < n)
        x[i] = cap * moe_device_tanh(x[i] / cap);
}

/* In the kernels below, a block is (row, part of the row). A short row gets a block with no more
 * threads than it needs. */
__device__ static inline uint32_t column(void)
{
    return blockIdx.y * blockDim.x + threadIdx.x;
}

__global__ __launch_bounds__(THREADS) void moe_activate_rows(moe_activation activation,
                                                             const float *scales, const float *g,
                                                             const float *u, float *y, uint32_t n)
{
    uint32_t i = column();
    if (i >= n)
        return;
    size_t at = (size_t)blockIdx.x * n + i;
    float scale = scales != NULL ? scales[blockIdx.x] : 1.0f;
    y[at] = moe_device_activate(activation, scale * g[at], scale * u[at]);
}

__global__ __launch_bounds__(THREADS) void moe_sigmoid_scale_rows(const float *gate, float *x,
                                                                  uint32_t n)
{
    uint32_t i = column();
    if (i >= n)
        return;
    float *row = x + (size_t)blockIdx.x * n;
    row[i] = moe_device_sigmoid(gate[blockIdx.x]) * row[i];
}

__global__ __launch_bounds__(THREADS) void moe_gate_rows(moe_gating gating)
{
    uint32_t i = column();
    if (i >= gating.n)
        return;
    float *x = gating.x + blockIdx.x * gating.x_stride;
    float g = gating.gate[blockIdx.x * gating.gate_stride + (gating.one ? 0 : i)];
    if (gating.kind == MOE_GATING_SILU)
        x[i] = moe_device_silu(g) * x[i];
    else if (gating.kind == MOE_GATING_PLAIN)
        x[i] = g * x[i];
    else if (gating.kind == MOE_GATING_SOFTPLUS)
        x[i] = moe_device_softplus(g) * x[i];
    else
        x[i] = moe_device_sigmoid(g) * x[i];
}

__global__ __launch_bounds__(THREADS) void moe_gather_rows(const float *x, const uint32_t *rows,
                                                           float *out, uint32_t n)
{
    uint32_t i = column();
    if (i < n)
        out[(size_t)blockIdx.x * n + i] = x[(size_t)rows[blockIdx.x] * n + i];
}

__global__ __launch_bounds__(THREADS) void moe_scatter_rows(const float *x, const uint32_t *rows,
                                                            float *out, uint32_t n)
{
    uint32_t i = column();
    if (i < n)
        out[(size_t)rows[blockIdx.x] * n + i] = x[(size_t)blockIdx.x * n + i];
}

__global__ __launch_bounds__(THREADS) void moe_copy_strided_rows(const float *src,
                                                                 size_t src_stride, float *dst,
                                                                 size_t dst_stride, uint32_t n)
{
    uint32_t i = column();
    if (i < n)
        dst[blockIdx.x * dst_stride + i] = src[blockIdx.x * src_stride + i];
}

__global__ __launch_bounds__(THREADS) void moe_combine_rows(const float *outs, const float *weights,
                                                            uint32_t n_ranks, uint32_t n, float *y)
{
    uint32_t i = column();
    if (i >= n)
        return;
    y[(size_t)blockIdx.x * n + i] = moe_device_combine(outs, weights, n_ranks, n, blockIdx.x, i);
}

static uint32_t blocks_of(size_t n)
{
    return (uint32_t)((n + THREADS - 1) / THREADS);
}

static uint32_t threads_of(uint32_t n)
{
    return n < THREADS ? (n + MOE_WARP - 1) / MOE_WARP * MOE_WARP : THREADS;
}

void moe_cuda_clamp(moe_cuda_stream stream, float limit, float *x, size_t n)
{
    if (n > 0)
        MOE_LAUNCH(moe_clamp_elements, blocks_of(n), THREADS, 0, stream, limit, x, n);
}

void moe_cuda_scale(moe_cuda_stream stream, float factor, float *x, size_t n)
{
    if (n > 0)
        MOE_LAUNCH(moe_scale_elements, blocks_of(n), THREADS, 0, stream, factor, x, n);
}

void moe_cuda_add(moe_cuda_stream stream, const float *a, const float *b, float *y, size_t n)
{
    if (n > 0)
        MOE_LAUNCH(moe_add_elements, blocks_of(n), THREADS, 0, stream, a, b, y, n);
}

void moe_cuda_soft_cap(moe_cuda_stream stream, float cap, float *x, size_t n)
{
    if (n > 0)
        MOE_LAUNCH(moe_soft_cap_elements, blocks_of(n), THREADS, 0, stream, cap, x, n);
}

void moe_cuda_activate(moe_cuda_stream stream, const moe_activation *activation,
                       const float *scales, const float *g, const float *u, float *y,
                       uint32_t n_rows, uint32_t n)
{
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_activate_rows, dim3(n_rows, blocks_of(n)), threads_of(n), 0, stream,
                   *activation, scales, g, u, y, n);
}

void moe_cuda_sigmoid_scale(moe_cuda_stream stream, const float *gate, float *x, uint32_t n_rows,
                            uint32_t n)
{
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_sigmoid_scale_rows, dim3(n_rows, blocks_of(n)), threads_of(n), 0, stream,
                   gate, x, n);
}

void moe_cuda_gate(moe_cuda_stream stream, const moe_gating *gating, size_t n_rows)
{
    if (n_rows > 0 && gating->n > 0)
        MOE_LAUNCH(moe_gate_rows, dim3((uint32_t)n_rows, blocks_of(gating->n)),
                   threads_of(gating->n), 0, stream, *gating);
}

void moe_cuda_gather(moe_cuda_stream stream, const float *x, uint32_t n, const uint32_t *rows,
                     uint32_t n_rows, float *out)
{
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_gather_rows, dim3(n_rows, blocks_of(n)), threads_of(n), 0, stream, x, rows,
                   out, n);
}

void moe_cuda_scatter(moe_cuda_stream stream, const float *x, uint32_t n, const uint32_t *rows,
                      uint32_t n_rows, float *out)
{
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_scatter_rows, dim3(n_rows, blocks_of(n)), threads_of(n), 0, stream, x, rows,
                   out, n);
}

void moe_cuda_copy_rows(moe_cuda_stream stream, const float *src, size_t src_stride, float *dst,
                        size_t dst_stride, uint32_t n, size_t n_rows)
{
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_copy_strided_rows, dim3((uint32_t)n_rows, blocks_of(n)), threads_of(n), 0,
                   stream, src, src_stride, dst, dst_stride, n);
}

void moe_cuda_combine(moe_cuda_stream stream, const moe_combine *combine, uint32_t n_rows)
{
    if (n_rows > 0 && combine->n > 0)
        MOE_LAUNCH(moe_combine_rows, dim3(n_rows, blocks_of(combine->n)), threads_of(combine->n), 0,
                   stream, combine->outs, combine->weights, combine->n_ranks, combine->n,
                   combine->y);
}
