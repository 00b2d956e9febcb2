/* SPDX-License-Identifier: MIT */
/* The short convolution with which recurrent layers begin, and its tail: the inputs of the last
 * tokens, which a state keeps. By cpu/kernels/delta_rule.h and runtime/device/delta_ops.h. */
#ifndef MOE_CUDA_RECURRENT_CONV_CUH
#define MOE_CUDA_RECURRENT_CONV_CUH

#include "cpu/kernels/delta_rule.h"
#include "cuda/kernels/activation.cuh"

#define MOE_CONV_NORM_EPS 1e-6f

/* Finds the sequence to which row `row` of all tokens belongs, and the row's token number in it. */
__device__ static inline const moe_delta_sequence &moe_sequence_of(const moe_delta_sequence *s,
                                                                   uint32_t row, uint32_t *token)
{
    for (; row >= s->n_tokens; s++)
        row -= s->n_tokens;
    *token = row;
    return *s;
}

/* A short convolution: its shape, and where its tail is in a state. */
typedef struct moe_conv_shape {
    uint32_t channels; /* of a row */
    uint32_t kernel;
    size_t tail_at;
    uint32_t step; /* how many tokens apart the weights' inputs are */
} moe_conv_shape;

/* Tokens of the tail. */
__device__ static inline int moe_tail_rows(const moe_conv_shape &c)
{
    return (int)((c.kernel - 1) * c.step);
}

/* One channel of token `at` before the convolution. `at` may be before the sequence's first token:
 * then it is in the tail. */
__device__ static inline float moe_channel_at(const moe_conv_shape &c, const moe_delta_sequence &s,
                                              int at, uint32_t channel)
{
    if (at >= 0)
        return s.mixed[at * s.mixed_stride + channel];
    if (s.from == NULL)
        return 0.0f;
    return s.from[c.tail_at + (size_t)(moe_tail_rows(c) + at) * c.channels + channel];
}

/* Convolves a channel. weights: the channel's, [kernel]; value: its bias, or 0. */
__device__ static inline float moe_convolve(const moe_conv_shape &c, const moe_delta_sequence &s,
                                            uint32_t token, uint32_t channel, const float *weights,
                                            float value)
{
    for (uint32_t t = 0; t < c.kernel; t++) {
        float x = moe_channel_at(c, s, (int)(token + t * c.step) - moe_tail_rows(c), channel);
        value = fmaf(weights[t], x, value);
    }
    return value;
}

/* Writes the tail that the sequence leaves: its last moe_tail_rows() tokens. Each token's block
 * writes that token; the first token's block also keeps the older tokens that remain in the tail.
 */
__device__ static inline void moe_keep_tail(const moe_conv_shape &c, const moe_delta_sequence &s,
                                            uint32_t token, uint32_t channel)
{
    int rows = moe_tail_rows(c);
    if (s.to == NULL)
        return;
    float *tail = s.to + c.tail_at;
    for (int r = 0; r < rows; r++) {
        int at = (int)s.n_tokens - rows + r;
        if (at == (int)token || (at < 0 && token == 0))
            tail[r * (size_t)c.channels + channel] = moe_channel_at(c, s, at, channel);
    }
}

/* What a block computes together: a head's queries, keys or values. */
typedef enum moe_conv_part { MOE_CONV_QUERY, MOE_CONV_KEY, MOE_CONV_VALUE } moe_conv_part;

typedef struct moe_part_shared {
    float y[MOE_DELTA_MAX_KEY_DIM];
    float factor;
} moe_part_shared;

/* Computes channels first .. first + n - 1 of one token, one thread each: convolves, applies SiLU,
 * divides queries and keys by their length, and keeps the tail. weights: of the first channel. All
 * threads of the block call it; the result is valid in threads with a channel. */
__device__ static inline float moe_convolve_part(const moe_conv_shape &c,
                                                 const moe_delta_sequence &s, uint32_t token,
                                                 uint32_t first, uint32_t n, const float *weights,
                                                 moe_conv_part part, moe_part_shared *shared)
{
    uint32_t i = threadIdx.x;
    float value = 0.0f;
    if (i < n) {
        value = moe_device_silu(
            moe_convolve(c, s, token, first + i, weights + (size_t)i * c.kernel, 0.0f));
        moe_keep_tail(c, s, token, first + i);
    }
    if (part == MOE_CONV_VALUE)
        return value;
    if (i < n)
        shared->y[i] = value;
    __syncthreads();
    if (i < MOE_WARP) {
        float lane = 0.0f;
        for (uint32_t e = i % MOE_LANES; e < n; e += MOE_LANES)
            lane = fmaf(shared->y[e], shared->y[e], lane);
        lane = moe_lanes_sum(lane);
        if (i == 0) {
            float inverse = 1.0f / sqrtf(lane + MOE_CONV_NORM_EPS);
            shared->factor = part == MOE_CONV_QUERY ? inverse * (1.0f / sqrtf((float)n)) : inverse;
        }
    }
    __syncthreads();
    return shared->factor * value;
}

/* Threads of a block with one channel for each thread. */
static inline uint32_t moe_part_threads(uint32_t n)
{
    return (n + MOE_WARP - 1) / MOE_WARP * MOE_WARP;
}

#endif
