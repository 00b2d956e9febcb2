/* SPDX-License-Identifier: MIT */
/* The short convolution and the gated delta rule of recurrent layers, by cpu/kernels/delta_rule.h.
 *
 * Two launches. In the first a block takes one token and one head's queries, keys or values, and
 * also keeps what later calls need of the tokens before the convolution. In the second a block of
 * one warp takes 32 columns of one head of one sequence, has them in shared memory and goes through
 * all tokens in order: each thread has a column, which meets no other column, so the state is read
 * and written once a call. A token is two chains of key_dim fmaf, which nothing may shorten. */
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/softplus.cuh"

#define COLUMNS       MOE_WARP
#define SHORT_THREADS 128u
#define NORM_EPS      1e-6f

__device__ static inline uint32_t channels_of(const moe_delta_rule &d)
{
    return 2 * d.n_key_head * d.key_dim + d.n_head * d.value_dim;
}

/* The sequence that has row `row` of all tokens, and which of its tokens that is. */
__device__ static inline const moe_delta_sequence &sequence_of(const moe_delta_sequence *s,
                                                               uint32_t row, uint32_t *token)
{
    for (; row >= s->n_tokens; s++)
        row -= s->n_tokens;
    *token = row;
    return *s;
}

/* A short convolution: its shape, and where its tail is in a state. */
typedef struct conv_shape {
    uint32_t channels;
    uint32_t kernel;
    size_t tail_at;
    const float *weights; /* [channels][kernel] */
} conv_shape;

__device__ static inline conv_shape shape_of(const moe_delta_rule &d)
{
    return {channels_of(d), d.conv_kernel, (size_t)d.n_head * d.key_dim * d.value_dim, d.conv};
}

/* One channel before the convolution, of token `at`, which may be one before the sequence's first.
 */
__device__ static inline float channel_at(const conv_shape &c, const moe_delta_sequence &s, int at,
                                          uint32_t channel)
{
    if (at >= 0)
        return s.mixed[at * s.mixed_stride + channel];
    if (s.from == NULL)
        return 0.0f;
    return s.from[c.tail_at + (c.kernel - 1 + at) * (size_t)c.channels + channel];
}

__device__ static inline float convolve(const conv_shape &c, const moe_delta_sequence &s,
                                        uint32_t token, uint32_t channel)
{
    float value = 0.0f;
    for (uint32_t t = 0; t < c.kernel; t++) {
        float x = channel_at(c, s, (int)(token + t) - (int)(c.kernel - 1), channel);
        value = fmaf(c.weights[(size_t)channel * c.kernel + t], x, value);
    }
    return value;
}

/* The tail after the sequence is its last conv_kernel - 1 tokens. A token's block writes its own;
 * the first token's also what is left of those before the sequence. */
__device__ static inline void keep_tail(const conv_shape &c, const moe_delta_sequence &s,
                                        uint32_t token, uint32_t channel)
{
    int rows = (int)c.kernel - 1;
    float *tail = s.to + c.tail_at;
    for (int r = 0; r < rows; r++) {
        int at = (int)s.n_tokens - rows + r;
        if (at == (int)token || (at < 0 && token == 0))
            tail[r * (size_t)c.channels + channel] = channel_at(c, s, at, channel);
    }
}

/* A layer that is a short convolution alone. Blocks: (row of all tokens, some channels). */
__global__ __launch_bounds__(SHORT_THREADS) void moe_short_convolve(moe_short_conv d)
{
    uint32_t channel = blockIdx.y * SHORT_THREADS + threadIdx.x;
    if (channel >= d.n)
        return;
    conv_shape c = {d.n, d.conv_kernel, 0, d.conv};
    uint32_t token;
    const moe_delta_sequence &s = sequence_of(d.sequences, blockIdx.x, &token);
    float value = convolve(c, s, token, channel);
    if (token >= s.n_silent)
        s.out[(size_t)(token - s.n_silent) * d.n + channel] = value;
    if (s.to != NULL)
        keep_tail(c, s, token, channel);
}

/* Blocks: (row of all tokens, part). Parts are the key heads' queries, their keys, the heads'
 * values. */
__global__ __launch_bounds__(MOE_DELTA_MAX_KEY_DIM) void moe_delta_convolve(moe_delta_rule d)
{
    __shared__ float y[MOE_DELTA_MAX_KEY_DIM];
    __shared__ float factor;
    uint32_t token;
    const moe_delta_sequence &s = sequence_of(d.sequences, blockIdx.x, &token);
    uint32_t n_keys = 2 * d.n_key_head;
    bool key = blockIdx.y < n_keys;
    uint32_t n = key ? d.key_dim : d.value_dim;
    uint32_t first = key ? blockIdx.y * n : n_keys * d.key_dim + (blockIdx.y - n_keys) * n;
    uint32_t i = threadIdx.x;
    float value = 0.0f;
    if (i < n) {
        value = moe_device_silu(convolve(shape_of(d), s, token, first + i));
        if (s.to != NULL)
            keep_tail(shape_of(d), s, token, first + i);
    }
    if (key) {
        if (i < n)
            y[i] = value;
        __syncthreads();
        if (i < MOE_WARP) {
            float lane = 0.0f;
            for (uint32_t e = i % MOE_LANES; e < n; e += MOE_LANES)
                lane = fmaf(y[e], y[e], lane);
            lane = moe_lanes_sum(lane);
            if (i == 0) {
                float inverse = 1.0f / sqrtf(lane + NORM_EPS);
                factor = blockIdx.y < d.n_key_head ? inverse * (1.0f / sqrtf((float)d.key_dim))
                                                   : inverse;
            }
        }
        __syncthreads();
        value = factor * value;
    }
    if (i < n)
        d.convolved[(size_t)blockIdx.x * channels_of(d) + first + i] = value;
}

typedef struct advance_shared {
    float q[MOE_DELTA_MAX_KEY_DIM];
    float k[MOE_DELTA_MAX_KEY_DIM];
    float decay[MOE_WARP]; /* of the next tokens */
    float beta[MOE_WARP];
} advance_shared;

/* Decay and beta of token first + this thread. */
__device__ static inline void compute_gates(const moe_delta_rule &d, const moe_delta_sequence &s,
                                            uint32_t head, uint32_t first, advance_shared *shared)
{
    uint32_t group = d.gate_group;
    uint32_t at = head / group * 2 * group + head % group;
    uint32_t t = first + threadIdx.x;
    if (t >= s.n_tokens)
        return;
    const float *gates = s.gates + t * s.gates_stride;
    shared->beta[threadIdx.x] = 1.0f / (1.0f + moe_device_exp(-gates[at]));
    float rate = moe_device_softplus(gates[at + group] + d.dt_bias[head]);
    shared->decay[threadIdx.x] = moe_device_exp(d.decay[head] * rate);
}

/* What one token does to this thread's column; returns its output. */
__device__ static inline float take_token(const advance_shared *shared, float *state,
                                          uint32_t key_dim, float decay, float beta, float v)
{
    float r = 0.0f;
#pragma unroll 8
    for (uint32_t i = 0; i < key_dim; i++)
        r = fmaf(state[i * COLUMNS], shared->k[i], r);
    float change = beta * fmaf(-decay, r, v);
    float o = 0.0f;
#pragma unroll 8
    for (uint32_t i = 0; i < key_dim; i++) {
        float next = fmaf(shared->k[i], change, decay * state[i * COLUMNS]);
        state[i * COLUMNS] = next;
        o = fmaf(next, shared->q[i], o);
    }
    return o;
}

/* Blocks: (columns of a head, head, sequence). */
__global__ __launch_bounds__(COLUMNS) void moe_delta_advance(moe_delta_rule d)
{
    MOE_DYNAMIC_SHARED(moe_float4, delta_memory);
    advance_shared *shared = (advance_shared *)delta_memory;
    float *state = (float *)(delta_memory + sizeof(advance_shared) / sizeof(moe_float4));
    const moe_delta_sequence &s = d.sequences[blockIdx.z];
    size_t row = 0;
    for (uint32_t i = 0; i < blockIdx.z; i++)
        row += d.sequences[i].n_tokens;
    uint32_t head = blockIdx.y;
    uint32_t key_head = d.tiled ? head % d.n_key_head : head / (d.n_head / d.n_key_head);
    uint32_t column = blockIdx.x * COLUMNS + threadIdx.x;
    bool valid = column < d.value_dim;
    size_t place = (size_t)head * d.key_dim * d.value_dim + column;
    uint32_t channels = channels_of(d);
    size_t keys = (size_t)d.n_key_head * d.key_dim;
    state += threadIdx.x;
    for (uint32_t i = 0; i < d.key_dim; i++)
        state[i * COLUMNS] =
            valid && s.from != NULL ? s.from[place + (size_t)i * d.value_dim] : 0.0f;
    for (uint32_t t = 0; t < s.n_tokens; t++) {
        const float *x = d.convolved + (row + t) * channels;
        __syncthreads();
        if (t % MOE_WARP == 0)
            compute_gates(d, s, head, t, shared);
        for (uint32_t i = threadIdx.x; i < d.key_dim; i += COLUMNS) {
            shared->q[i] = x[(size_t)key_head * d.key_dim + i];
            shared->k[i] = x[keys + (size_t)key_head * d.key_dim + i];
        }
        __syncthreads();
        float v = valid ? x[2 * keys + (size_t)head * d.value_dim + column] : 0.0f;
        float o = take_token(shared, state, d.key_dim, shared->decay[t % MOE_WARP],
                             shared->beta[t % MOE_WARP], v);
        if (valid && t >= s.n_silent)
            s.out[((size_t)(t - s.n_silent) * d.n_head + head) * d.value_dim + column] = o;
    }
    for (uint32_t i = 0; valid && s.to != NULL && i < d.key_dim; i++)
        s.to[place + (size_t)i * d.value_dim] = state[i * COLUMNS];
}

static_assert(sizeof(advance_shared) % sizeof(moe_float4) == 0, "what follows is aligned");

void moe_cuda_delta_rule(moe_cuda_stream stream, const moe_delta_rule *rule, uint32_t n_tokens)
{
    const moe_delta_rule &d = *rule;
    uint32_t longest = d.key_dim > d.value_dim ? d.key_dim : d.value_dim;
    uint32_t blocks = (d.value_dim + COLUMNS - 1) / COLUMNS;
    size_t shared = sizeof(advance_shared) + (size_t)d.key_dim * COLUMNS * sizeof(float);
    if (d.n_sequences == 0)
        return;
    if (n_tokens > 0)
        MOE_LAUNCH(moe_delta_convolve, dim3(n_tokens, 2 * d.n_key_head + d.n_head),
                   (longest + MOE_WARP - 1) / MOE_WARP * MOE_WARP, 0, stream, d);
    MOE_LAUNCH(moe_delta_advance, dim3(blocks, d.n_head, d.n_sequences), COLUMNS, shared, stream,
               d);
}

void moe_cuda_short_conv(moe_cuda_stream stream, const moe_short_conv *conv, uint32_t n_tokens)
{
    if (n_tokens > 0 && conv->n > 0)
        MOE_LAUNCH(moe_short_convolve,
                   dim3(n_tokens, (conv->n + SHORT_THREADS - 1) / SHORT_THREADS), SHORT_THREADS, 0,
                   stream, *conv);
}
