/* SPDX-License-Identifier: MIT */
/* Mamba-2's short convolution and state space, by moe_state_space. Two launches as in
 * delta_rule.cu, the first over blocks of channels: no head's keys have a norm. */
#include "cuda/kernels/recurrent_conv.cuh"
#include "cuda/kernels/recurrent_states.cuh"
#include "cuda/kernels/softplus.cuh"

#define CONV_THREADS 128u

__host__ __device__ static inline uint32_t inner_of(const moe_state_space &d)
{
    return d.n_head * d.value_dim;
}

__host__ __device__ static inline uint32_t channels_of(const moe_state_space &d)
{
    return inner_of(d) + 2 * d.n_group * d.key_dim;
}

/* Blocks: (row of all tokens, some channels). */
__global__ __launch_bounds__(CONV_THREADS) void moe_space_convolve(moe_state_space d)
{
    uint32_t channel = blockIdx.y * CONV_THREADS + threadIdx.x;
    moe_conv_shape c = {channels_of(d), d.conv_kernel, (size_t)d.n_head * d.key_dim * d.value_dim,
                        1};
    if (channel >= c.channels)
        return;
    uint32_t token;
    const moe_delta_sequence &s = moe_sequence_of(d.sequences, blockIdx.x, &token);
    float bias = d.conv_bias != NULL ? d.conv_bias[channel] : 0.0f;
    const float *weights = d.conv + (size_t)channel * d.conv_kernel;
    d.convolved[(size_t)blockIdx.x * c.channels + channel] =
        moe_device_silu(moe_convolve(c, s, token, channel, weights, bias));
    moe_keep_tail(c, s, token, channel);
}

typedef struct space_steps {
    static constexpr bool row_decays = false;
    const moe_state_space &d;

    __device__ moe_head_inputs inputs(uint32_t head) const
    {
        size_t group = head / (d.n_head / d.n_group);
        size_t keys = inner_of(d) + group * d.key_dim;
        return {keys + (size_t)d.n_group * d.key_dim, keys, (size_t)head * d.value_dim, 0};
    }

    __device__ void gates(const moe_delta_sequence &s, uint32_t head, uint32_t token, float *decay,
                          float *beta) const
    {
        float step = moe_device_softplus(s.gates[token * s.gates_stride + head] + d.dt_bias[head]);
        *beta = step;
        *decay = moe_device_exp(d.decay[head] * step);
    }

    __device__ float take(const moe_state_token &t, uint32_t head) const
    {
        float change = t.beta * t.v;
        float o = 0.0f;
#pragma unroll 8
        for (uint32_t i = 0; i < t.key_dim; i++) {
            float *x = &t.state[i * MOE_STATE_COLUMNS];
            *x = fmaf(t.shared->k[i], change, t.decay * *x);
            o = fmaf(*x, t.shared->q[i], o);
        }
        return fmaf(d.skip[head], t.v, o);
    }
} space_steps;

__global__ __launch_bounds__(MOE_STATE_COLUMNS) void moe_space_advance(moe_state_space d)
{
    MOE_DYNAMIC_SHARED(moe_float4, space_memory);
    moe_states_shape shape = {d.n_head,       d.key_dim,   d.value_dim,
                              channels_of(d), d.convolved, d.sequences};
    moe_advance_states(shape, space_steps{d}, space_memory);
}

void moe_cuda_state_space(moe_cuda_stream stream, const moe_state_space *space, uint32_t n_tokens)
{
    const moe_state_space &d = *space;
    if (d.n_sequences == 0)
        return;
    if (n_tokens > 0)
        MOE_LAUNCH(moe_space_convolve,
                   dim3(n_tokens, (channels_of(d) + CONV_THREADS - 1) / CONV_THREADS), CONV_THREADS,
                   0, stream, d);
    MOE_LAUNCH(moe_space_advance, moe_states_grid(d.value_dim, d.n_head, d.n_sequences),
               MOE_STATE_COLUMNS, moe_states_bytes(d.key_dim), stream, d);
}
