/* SPDX-License-Identifier: MIT */
/* Rows of an embedding table as floats, by the dequantisers of matmul.h: scale * code, rounded,
 * then the minimum, then the factor. A thread takes 64 elements of a quantised row, or one element
 * of a row of floats. */
#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/vector_math.cuh"
#include "cuda/kernels/weight_points.cuh"

#define THREADS 128u

typedef struct embed_job {
    const uint8_t *table;
    const int32_t *tokens; /* or NULL: 0, 1, .. */
    size_t row_bytes;
    uint32_t n;
    float scale;
    float *out;
} embed_job;

__device__ static inline size_t token_of(const embed_job &job)
{
    return job.tokens != NULL ? (size_t)job.tokens[blockIdx.x] : blockIdx.x;
}

template <int TYPE> __global__ __launch_bounds__(THREADS) void moe_embed_blocks(embed_job job)
{
    typedef weight_format<TYPE> format;
    constexpr uint32_t group_bytes = 256 / format::elems * format::bytes;
    uint32_t e = (blockIdx.y * THREADS + threadIdx.x) * 64;
    if (e >= job.n)
        return;
    const uint8_t *row = job.table + token_of(job) * job.row_bytes;
    float *out = job.out + (size_t)blockIdx.x * job.n + e;
    weight_part part;
    format::unpack(row + (size_t)(e / 256) * group_bytes, e / 64 % 4, e + 32 < job.n, &part);
#pragma unroll
    for (uint32_t i = 0; i < 64; i++) {
        int code = (int8_t)(part.code[i / 4] >> i % 4 * 8 & 255) / (1 << format::zeros(i / 32));
        float value = part.scale[i * format::runs / 64] * (float)code;
        if (format::has_mins)
            value = value + part.min[i * format::runs / 64];
        if (e + i < job.n)
            out[i] = job.scale * value;
    }
}

template <int TYPE> __global__ __launch_bounds__(THREADS) void moe_embed_floats(embed_job job)
{
    typedef weight_format<TYPE> format;
    uint32_t e = blockIdx.y * THREADS + threadIdx.x;
    if (e >= job.n)
        return;
    const uint8_t *row = job.table + token_of(job) * job.row_bytes;
    job.out[(size_t)blockIdx.x * job.n + e] =
        job.scale * format::load1(row + (size_t)e * format::elem_bytes);
}

void moe_cuda_embed(moe_cuda_stream stream, const moe_weight *table, const int32_t *tokens,
                    uint32_t n_rows, float scale, float *out)
{
    embed_job job = {
        (const uint8_t *)table->data, tokens, table->row_bytes, table->n_in, scale, out};
    if (n_rows == 0 || table->n_in == 0)
        return;
    dim3 blocks(n_rows, (table->n_in + 64 * THREADS - 1) / (64 * THREADS));
    dim3 floats(n_rows, (table->n_in + THREADS - 1) / THREADS);
#define EMBED(kernel, grid, name)                                                                  \
    case MOE_DTYPE_##name:                                                                         \
        MOE_LAUNCH(kernel<MOE_DTYPE_##name>, grid, THREADS, 0, stream, job);                       \
        break
    switch (table->type) {
        EMBED(moe_embed_floats, floats, F32);
        EMBED(moe_embed_floats, floats, F16);
        EMBED(moe_embed_floats, floats, BF16);
        EMBED(moe_embed_blocks, blocks, Q4_0);
        EMBED(moe_embed_blocks, blocks, Q4_1);
        EMBED(moe_embed_blocks, blocks, Q5_0);
        EMBED(moe_embed_blocks, blocks, Q5_1);
        EMBED(moe_embed_blocks, blocks, Q8_0);
        EMBED(moe_embed_blocks, blocks, Q2_K);
        EMBED(moe_embed_blocks, blocks, Q3_K);
        EMBED(moe_embed_blocks, blocks, Q4_K);
        EMBED(moe_embed_blocks, blocks, Q5_K);
        EMBED(moe_embed_blocks, blocks, Q6_K);
        EMBED(moe_embed_blocks, blocks, IQ4_NL);
        EMBED(moe_embed_blocks, blocks, IQ4_XS);
        EMBED(moe_embed_blocks, blocks, MXFP4);
        EMBED(moe_embed_blocks, blocks, IQ2_XXS);
        EMBED(moe_embed_blocks, blocks, IQ2_XS);
        EMBED(moe_embed_blocks, blocks, IQ2_S);
        EMBED(moe_embed_blocks, blocks, IQ3_XXS);
        EMBED(moe_embed_blocks, blocks, IQ3_S);
        EMBED(moe_embed_blocks, blocks, IQ1_S);
        EMBED(moe_embed_blocks, blocks, IQ1_M);
        EMBED(moe_embed_blocks, blocks, TQ1_0);
        EMBED(moe_embed_blocks, blocks, TQ2_0);
        EMBED(moe_embed_blocks, blocks, NVFP4);
    default:
        break;
    }
#undef EMBED
}
