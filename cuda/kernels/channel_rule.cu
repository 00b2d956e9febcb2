/* SPDX-License-Identifier: MIT */
/* The delta rule with a decay for each row of a head's state (KDA), by moe_channel_rule.
 *
 * Two launches as in delta_rule.cu. A row of the scratch has queries, keys and values of all heads,
 * then the decays, which the first launch computes as a fourth part of a head. */
#include "cuda/kernels/recurrent_conv.cuh"
#include "cuda/kernels/recurrent_states.cuh"
#include "cuda/kernels/short_softplus.cuh"

#define PARTS 4u

__host__ __device__ static inline uint32_t inner_of(const moe_channel_rule &d)
{
    return d.n_head * d.dim;
}

/* As row_decays of cpu/kernels/delta_rule.h. */
__device__ static inline float decay_of(float x, float rate)
{
    return moe_device_exp(rate * moe_short_softplus(x));
}

/* As bounded_decays of cpu/kernels/delta_rule.h. */
__device__ static inline float bounded_decay_of(float x, float rate, float bound)
{
    return moe_device_exp(bound / (1.0f + moe_device_exp(-(rate * x))));
}

/* Blocks: (row of all tokens, part of a head). */
__global__ __launch_bounds__(MOE_DELTA_MAX_KEY_DIM) void moe_channel_convolve(moe_channel_rule d)
{
    __shared__ moe_part_shared shared;
    uint32_t inner = inner_of(d);
    moe_conv_shape c = {3 * inner, d.conv_kernel, (size_t)inner * d.dim, 1};
    uint32_t token;
    const moe_delta_sequence &s = moe_sequence_of(d.sequences, blockIdx.x, &token);
    uint32_t part = blockIdx.y / d.n_head;
    uint32_t head = blockIdx.y % d.n_head;
    uint32_t channel = head * d.dim + threadIdx.x; /* within its part */
    float value = 0.0f;
    if (part < PARTS - 1) {
        const float *weights = part == 0 ? d.conv[0] : part == 1 ? d.conv[1] : d.conv[2];
        value = moe_convolve_part(c, s, token, part * inner + head * d.dim, d.dim,
                                  weights + (size_t)head * d.dim * d.conv_kernel,
                                  (moe_conv_part)part, &shared);
    } else if (threadIdx.x < d.dim) {
        const float *f = s.gates + token * s.gates_stride + d.n_head;
        float x = f[channel] + d.dt_bias[channel];
        value = d.decay_bound < 0.0f ? bounded_decay_of(x, fabsf(d.decay[head]), d.decay_bound)
                                     : decay_of(x, d.decay[head]);
    }
    if (threadIdx.x < d.dim)
        d.convolved[(size_t)blockIdx.x * PARTS * inner + part * inner + channel] = value;
}

typedef struct channel_steps {
    static constexpr bool row_decays = true;
    const moe_channel_rule &d;

    __device__ moe_head_inputs inputs(uint32_t head) const
    {
        size_t inner = inner_of(d);
        size_t first = (size_t)head * d.dim;
        return {first, inner + first, 2 * inner + first, 3 * inner + first};
    }

    __device__ void gates(const moe_delta_sequence &s, uint32_t head, uint32_t token, float *decay,
                          float *beta) const
    {
        *decay = 0.0f; /* not used: each row has its own decay */
        *beta = 1.0f / (1.0f + moe_device_exp(-s.gates[token * s.gates_stride + head]));
    }

    __device__ float take(const moe_state_token &t, uint32_t head) const
    {
        (void)head;
        float r = 0.0f;
        float o = 0.0f;
#pragma unroll 8
        for (uint32_t i = 0; i < t.key_dim; i++)
            r = fmaf(t.shared->decays[i] * t.state[i * MOE_STATE_COLUMNS], t.shared->k[i], r);
        float change = t.beta * (t.v - r);
#pragma unroll 8
        for (uint32_t i = 0; i < t.key_dim; i++) {
            float *x = &t.state[i * MOE_STATE_COLUMNS];
            *x = fmaf(t.shared->k[i], change, t.shared->decays[i] * *x);
            o = fmaf(*x, t.shared->q[i], o);
        }
        return o;
    }
} channel_steps;

__global__ __launch_bounds__(MOE_STATE_COLUMNS) void moe_channel_advance(moe_channel_rule d)
{
    MOE_DYNAMIC_SHARED(moe_float4, channel_memory);
    moe_states_shape shape = {d.n_head,    d.dim,      d.dim, PARTS * inner_of(d),
                              d.convolved, d.sequences};
    moe_advance_states(shape, channel_steps{d}, channel_memory);
}

void moe_cuda_channel_rule(moe_cuda_stream stream, const moe_channel_rule *rule, uint32_t n_tokens)
{
    const moe_channel_rule &d = *rule;
    if (d.n_sequences == 0)
        return;
    if (n_tokens > 0)
        MOE_LAUNCH(moe_channel_convolve, dim3(n_tokens, PARTS * d.n_head), moe_part_threads(d.dim),
                   0, stream, d);
    MOE_LAUNCH(moe_channel_advance, moe_states_grid(d.dim, d.n_head, d.n_sequences),
               MOE_STATE_COLUMNS, moe_states_bytes(d.dim), stream, d);
}
