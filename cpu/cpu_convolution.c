/* SPDX-License-Identifier: MIT */
#include "cpu/cpu_convolution.h"

#include <math.h>
#include <string.h>

#include "runtime/base/moe_assert.h"

/* How many tokens are convolved before their rows are normalised. */
#define CONV_TOKENS 64u
#define NORM_EPS    1e-6f

static uint32_t tail_rows(const moe_cpu_convolution *c)
{
    return (c->n_taps - 1) * (c->step > 0 ? c->step : 1);
}

/* The channels from `first` on of token `at` of the sequence. `at` is negative for tokens before
 * the sequence's first one. */
static const float *token_at(const moe_cpu_convolution *c, const moe_delta_sequence *s, int64_t at,
                             uint32_t first)
{
    static const float zeros[MOE_CPU_CONV_CHANNELS];
    if (at >= 0) {
        return s->mixed + (size_t)at * s->mixed_stride + first;
    }
    size_t row = tail_rows(c) - (size_t)-at;
    return s->from == NULL ? zeros : s->from + c->tail_at + row * c->n_channels + first;
}

void moe_cpu_convolve(const moe_cpu_convolution *c, const moe_delta_sequence *s,
                      const moe_cpu_channels *channels, uint32_t begin, uint32_t n_tokens,
                      float *out, size_t out_stride)
{
    uint32_t n = channels->n;
    const uint32_t step = c->step > 0 ? c->step : 1;
    float weights[MOE_DELTA_MAX_TAPS * MOE_CPU_CONV_CHANNELS];
    MOE_ASSERT(n <= MOE_CPU_CONV_CHANNELS && c->n_taps > 0 && c->n_taps <= MOE_DELTA_MAX_TAPS);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t t = 0; t < c->n_taps; t++) {
            weights[t * n + i] = channels->weights[(size_t)i * c->n_taps + t];
        }
    }
    for (uint32_t t = 0; t < n_tokens; t++) {
        const float *taps[MOE_DELTA_MAX_TAPS];
        for (uint32_t i = 0; i < c->n_taps; i++) {
            int64_t at = (int64_t)begin + t + (int64_t)i * step - tail_rows(c);
            taps[i] = token_at(c, s, at, channels->first);
        }
        moe_conv_args args = {.taps = taps,
                              .weights = weights,
                              .bias = channels->bias,
                              .n_taps = c->n_taps,
                              .n = n,
                              .silu = c->silu,
                              .y = out + t * out_stride};
        c->cpu->vector.convolve(&args);
    }
}

void moe_cpu_keep_tail(const moe_cpu_convolution *c, const moe_delta_sequence *s, uint32_t first,
                       uint32_t n)
{
    const uint32_t rows = tail_rows(c);
    for (uint32_t r = 0; r < rows && s->to != NULL; r++) {
        int64_t at = (int64_t)s->n_tokens - rows + r;
        memcpy(s->to + c->tail_at + (size_t)r * c->n_channels + first, token_at(c, s, at, first),
               n * sizeof *s->to);
    }
}

static void normalise(const moe_cpu_convolution *c, float *x, uint32_t n, bool query)
{
    const moe_vector_kernels *vector = &c->cpu->vector;
    float inv = 1.0f / sqrtf(vector->dot(x, x, n) + NORM_EPS);
    vector->scale(query ? inv * (1.0f / sqrtf((float)n)) : inv, x, n);
}

void moe_cpu_convolve_part(const moe_cpu_convolution *c, const moe_delta_sequence *s,
                           const moe_cpu_channels *channels, moe_cpu_part part, float *out,
                           size_t out_stride)
{
    for (uint32_t t = 0; t < s->n_tokens; t += CONV_TOKENS) {
        uint32_t n_now = s->n_tokens - t < CONV_TOKENS ? s->n_tokens - t : CONV_TOKENS;
        float *y = out + t * out_stride;
        moe_cpu_convolve(c, s, channels, t, n_now, y, out_stride);
        for (uint32_t i = 0; i < n_now && part != MOE_CPU_VALUE; i++) {
            normalise(c, y + i * out_stride, channels->n, part == MOE_CPU_QUERY);
        }
    }
    moe_cpu_keep_tail(c, s, channels->first, channels->n);
}

const moe_delta_sequence *moe_cpu_sequence_of(const moe_delta_sequence *sequences, uint32_t n_parts,
                                              uint32_t task, size_t *first_row)
{
    uint32_t at = task / n_parts;
    *first_row = 0;
    for (uint32_t i = 0; i < at; i++) {
        *first_row += sequences[i].n_tokens;
    }
    return &sequences[at];
}
