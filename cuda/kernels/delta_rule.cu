/* SPDX-License-Identifier: MIT */
/* The gated delta rule of recurrent layers, and layers that are a short convolution alone.
 *
 * The rule takes two launches. In the first launch a block computes the queries, keys or values of
 * one token and head, and stores the convolution's inputs that later calls need. The second launch
 * updates the states token by token (recurrent_states.cuh). */
#include "cuda/kernels/recurrent_conv.cuh"
#include "cuda/kernels/recurrent_states.cuh"
#include "cuda/kernels/softplus.cuh"

#define SHORT_THREADS 128u

/* Blocks: (row of all tokens, some channels). */
__global__ __launch_bounds__(SHORT_THREADS) void moe_short_convolve(moe_short_conv d)
{
    uint32_t channel = blockIdx.y * SHORT_THREADS + threadIdx.x;
    if (channel >= d.n)
        return;
    moe_conv_shape c = {d.n, d.conv_kernel, d.tail_at, d.step > 0 ? d.step : 1};
    uint32_t token;
    const moe_delta_sequence &s = moe_sequence_of(d.sequences, blockIdx.x, &token);
    const float *weights = d.conv + (size_t)channel * d.conv_kernel;
    float value =
        moe_convolve(c, s, token, channel, weights, d.bias != NULL ? d.bias[channel] : 0.0f);
    value = d.silu ? moe_device_silu(value) : value;
    if (s.out != NULL && token >= s.n_silent)
        s.out[(size_t)(token - s.n_silent) * d.n + channel] = value;
    moe_keep_tail(c, s, token, channel);
}

__host__ __device__ static inline uint32_t channels_of(const moe_delta_rule &d)
{
    return 2 * d.n_key_head * d.key_dim + d.n_head * d.value_dim;
}

/* Blocks: (row of all tokens, part). Parts are the key heads' queries, their keys, the heads'
 * values. */
__global__ __launch_bounds__(MOE_DELTA_MAX_KEY_DIM) void moe_delta_convolve(moe_delta_rule d)
{
    __shared__ moe_part_shared shared;
    moe_conv_shape c = {channels_of(d), d.conv_kernel, (size_t)d.n_head * d.key_dim * d.value_dim,
                        1};
    uint32_t token;
    const moe_delta_sequence &s = moe_sequence_of(d.sequences, blockIdx.x, &token);
    uint32_t n_keys = 2 * d.n_key_head;
    bool key = blockIdx.y < n_keys;
    uint32_t n = key ? d.key_dim : d.value_dim;
    uint32_t first = key ? blockIdx.y * n : n_keys * d.key_dim + (blockIdx.y - n_keys) * n;
    moe_conv_part part = blockIdx.y < d.n_key_head ? MOE_CONV_QUERY
                         : key                     ? MOE_CONV_KEY
                                                   : MOE_CONV_VALUE;
    float value = moe_convolve_part(c, s, token, first, n, d.conv + (size_t)first * d.conv_kernel,
                                    part, &shared);
    if (threadIdx.x < n)
        d.convolved[(size_t)blockIdx.x * c.channels + first + threadIdx.x] = value;
}

typedef struct delta_steps {
    static constexpr bool row_decays = false;
    const moe_delta_rule &d;

    __device__ moe_head_inputs inputs(uint32_t head) const
    {
        uint32_t key_head = d.tiled ? head % d.n_key_head : head / (d.n_head / d.n_key_head);
        size_t keys = (size_t)d.n_key_head * d.key_dim;
        size_t first = (size_t)key_head * d.key_dim;
        return {first, keys + first, 2 * keys + (size_t)head * d.value_dim, 0};
    }

    __device__ void gates(const moe_delta_sequence &s, uint32_t head, uint32_t token, float *decay,
                          float *beta) const
    {
        uint32_t group = d.gate_group;
        uint32_t at = head / group * 2 * group + head % group;
        const float *row = s.gates + token * s.gates_stride;
        *beta = 1.0f / (1.0f + moe_device_exp(-row[at]));
        float rate = moe_device_softplus(row[at + group] + d.dt_bias[head]);
        *decay = moe_device_exp(d.decay[head] * rate);
    }

    __device__ float take(const moe_state_token &t, uint32_t head) const
    {
        (void)head;
        float r = 0.0f;
        float o = 0.0f;
#pragma unroll 8
        for (uint32_t i = 0; i < t.key_dim; i++)
            r = fmaf(t.state[i * MOE_STATE_COLUMNS], t.shared->k[i], r);
        float change = t.beta * fmaf(-t.decay, r, t.v);
#pragma unroll 8
        for (uint32_t i = 0; i < t.key_dim; i++) {
            float *x = &t.state[i * MOE_STATE_COLUMNS];
            *x = fmaf(t.shared->k[i], change, t.decay * *x);
            o = fmaf(*x, t.shared->q[i], o);
        }
        return o;
    }
} delta_steps;

__global__ __launch_bounds__(MOE_STATE_COLUMNS) void moe_delta_advance(moe_delta_rule d)
{
    MOE_DYNAMIC_SHARED(moe_float4, delta_memory);
    moe_states_shape shape = {d.n_head,       d.key_dim,   d.value_dim,
                              channels_of(d), d.convolved, d.sequences};
    moe_advance_states(shape, delta_steps{d}, delta_memory);
}

void moe_cuda_delta_rule(moe_cuda_stream stream, const moe_delta_rule *rule, uint32_t n_tokens)
{
    const moe_delta_rule &d = *rule;
    uint32_t longest = d.key_dim > d.value_dim ? d.key_dim : d.value_dim;
    if (d.n_sequences == 0)
        return;
    if (n_tokens > 0)
        MOE_LAUNCH(moe_delta_convolve, dim3(n_tokens, 2 * d.n_key_head + d.n_head),
                   moe_part_threads(longest), 0, stream, d);
    MOE_LAUNCH(moe_delta_advance, moe_states_grid(d.value_dim, d.n_head, d.n_sequences),
               MOE_STATE_COLUMNS, moe_states_bytes(d.key_dim), stream, d);
}

void moe_cuda_short_conv(moe_cuda_stream stream, const moe_short_conv *conv, uint32_t n_tokens)
{
    if (n_tokens > 0 && conv->n > 0)
        MOE_LAUNCH(moe_short_convolve,
                   dim3(n_tokens, (conv->n + SHORT_THREADS - 1) / SHORT_THREADS), SHORT_THREADS, 0,
                   stream, *conv);
}
