/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/delta_rule.h"

#include <math.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/base/moe_assert.h"

#define LN2 0.69314718055994530942

/* 2 atanh(s) for |s| <= 1/3. */
static double two_atanh(double s)
{
    double square = s * s;
    double sum = 0.0;
    for (int i = MOE_SOFTPLUS_TERMS - 1; i >= 0; i--)
        sum = sum * square + 1.0 / (2 * i + 1);
    return 2.0 * s * sum;
}

float moe_softplus(float x)
{
    if (!(x <= 20.0f))
        return x;
    double u = moe_exp(x);
    if (u <= 1.0)
        return (float)two_atanh(u / (2.0 + u));
    int exponent;
    double m = frexp(1.0 + u, &exponent);
    if (m < 0.70710678118654752440) {
        m *= 2.0;
        exponent--;
    }
    return (float)(exponent * LN2 + two_atanh((m - 1.0) / (m + 1.0)));
}

void moe_conv_silu_c(const float *const *taps, const float *weights, uint32_t n_taps, float *y,
                     uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float c = 0.0f;
        for (uint32_t t = 0; t < n_taps; t++)
            c = fmaf(weights[(size_t)t * n + i], taps[t][i], c);
        y[i] = c / (1.0f + moe_exp(-c));
    }
}

static void take_token(const moe_delta_args *a, uint32_t t, uint32_t column)
{
    const float *q = a->q + t * a->qk_stride;
    const float *k = a->k + t * a->qk_stride;
    float *state = a->state + column;
    float r = 0.0f;
    for (uint32_t i = 0; i < a->key_dim; i++)
        r = fmaf(state[(size_t)i * a->n], k[i], r);
    float d = a->beta[t] * fmaf(-a->decay[t], r, a->v[t * a->v_stride + column]);
    float o = 0.0f;
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *s = &state[(size_t)i * a->n];
        *s = fmaf(k[i], d, a->decay[t] * *s);
        o = fmaf(*s, q[i], o);
    }
    if (t >= a->n_silent)
        a->out[(t - a->n_silent) * a->out_stride + column] = o;
}

void moe_delta_columns_c(const moe_delta_args *a)
{
    MOE_ASSERT(a->n > 0 && a->n <= MOE_DELTA_COLUMNS && a->key_dim <= MOE_DELTA_MAX_KEY_DIM);
    for (uint32_t t = 0; t < a->n_tokens; t++)
        for (uint32_t column = 0; column < a->n; column++)
            take_token(a, t, column);
}
