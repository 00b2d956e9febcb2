/* SPDX-License-Identifier: MIT */
/* Mamba-1's selective scan, by moe_selective_scan. A block of one warp takes 32 channels of one
 * sequence through all tokens: each thread has a channel, its state in shared memory. Each channel
 * has its own row of decays, which the first-level cache keeps; all threads of a block read the
 * same k and q. */
#include "cpu/kernels/delta_rule.h"
#include "cuda/kernels/short_softplus.cuh"
#include "cuda/kernels/vector_launch.h"

#define SCAN_CHANNELS MOE_WARP

/* Blocks: (channels, sequence). */
__global__ __launch_bounds__(SCAN_CHANNELS) void moe_scan(moe_selective_scan d)
{
    MOE_DYNAMIC_SHARED(float, scan_memory);
    const moe_delta_sequence &s = d.sequences[blockIdx.y];
    uint32_t channel = blockIdx.x * SCAN_CHANNELS + threadIdx.x;
    if (channel >= d.n)
        return;
    float *state = scan_memory + threadIdx.x;
    const float *rate = d.decay + (size_t)channel * d.n_rows;
    float bias = d.dt_bias[channel], skip = d.skip[channel];
    size_t row = 0;
    for (uint32_t i = 0; i < blockIdx.y; i++)
        row += d.sequences[i].n_tokens;
    for (uint32_t i = 0; i < d.n_rows; i++)
        state[i * SCAN_CHANNELS] = s.from != NULL ? s.from[(size_t)i * d.n + channel] : 0.0f;
    for (uint32_t t = 0; t < s.n_tokens; t++, row++) {
        const float *k = d.k + row * d.n_rows;
        const float *q = d.q + row * d.n_rows;
        float v = d.v[row * d.n + channel];
        float step = moe_short_softplus(d.dt[row * d.n + channel] + bias);
        float change = step * v;
        float o = 0.0f;
#pragma unroll 4
        for (uint32_t i = 0; i < d.n_rows; i++) {
            float *x = &state[i * SCAN_CHANNELS];
            *x = fmaf(k[i], change, moe_device_exp(rate[i] * step) * *x);
            o = fmaf(*x, q[i], o);
        }
        if (t >= s.n_silent)
            s.out[(size_t)(t - s.n_silent) * d.n + channel] = fmaf(skip, v, o);
    }
    for (uint32_t i = 0; s.to != NULL && i < d.n_rows; i++)
        s.to[(size_t)i * d.n + channel] = state[i * SCAN_CHANNELS];
}

void moe_cuda_selective_scan(moe_cuda_stream stream, const moe_selective_scan *scan)
{
    if (scan->n_sequences > 0)
        MOE_LAUNCH(moe_scan, dim3((scan->n + SCAN_CHANNELS - 1) / SCAN_CHANNELS, scan->n_sequences),
                   SCAN_CHANNELS, (size_t)scan->n_rows * SCAN_CHANNELS * sizeof(float), stream,
                   *scan);
}
