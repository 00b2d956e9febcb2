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

/* softplus(x) by the series that delta_rule.h gives for decays of rows. */
static float short_softplus(float x)
{
    float u = moe_exp(-(x > -x ? x : -x));
    float s = u / (2.0f + u), z = s * s;
    float p = 1.0f / (2 * MOE_DECAY_TERMS - 1);
    for (int k = MOE_DECAY_TERMS - 2; k >= 0; k--)
        p = fmaf(p, z, 1.0f / (float)(2 * k + 1));
    return (x > 0.0f ? x : 0.0f) + (s + s) * p;
}

void moe_row_decays_c(const float *f, const float *dt_bias, float rate, float *decay, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        decay[i] = moe_exp(rate * short_softplus(f[i] + dt_bias[i]));
}

void moe_bounded_decays_c(const float *f, const float *dt_bias, float rate, float bound,
                          float *decay, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        decay[i] = moe_exp(bound / (1.0f + moe_exp(-(rate * (f[i] + dt_bias[i])))));
}

void moe_convolve_c(const moe_conv_args *a)
{
    for (uint32_t i = 0; i < a->n; i++) {
        float c = a->bias != NULL ? a->bias[i] : 0.0f;
        for (uint32_t t = 0; t < a->n_taps; t++)
            c = fmaf(a->weights[(size_t)t * a->n + i], a->taps[t][i], c);
        a->y[i] = a->silu ? c / (1.0f + moe_exp(-c)) : c;
    }
}

/* The input of a rule for a token and a column: the token's query and key, the column's value, and
 * the column of the state. */
typedef struct token_column {
    const float *q, *k;
    float v;
    float *state;
} token_column;

static token_column column_of(const moe_delta_args *a, uint32_t t, uint32_t column)
{
    return (token_column){a->q + t * a->qk_stride, a->k + t * a->qk_stride,
                          a->v[t * a->v_stride + column], a->state + column};
}

static void put_out(const moe_delta_args *a, uint32_t t, uint32_t column, float o)
{
    if (t >= a->n_silent)
        a->out[(t - a->n_silent) * a->out_stride + column] = o;
}

static float delta_token(const moe_delta_args *a, uint32_t t, const token_column *c)
{
    float r = 0.0f, o = 0.0f;
    for (uint32_t i = 0; i < a->key_dim; i++)
        r = fmaf(c->state[(size_t)i * a->n], c->k[i], r);
    float d = a->beta[t] * fmaf(-a->decay[t], r, c->v);
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *s = &c->state[(size_t)i * a->n];
        *s = fmaf(c->k[i], d, a->decay[t] * *s);
        o = fmaf(*s, c->q[i], o);
    }
    return o;
}

static float channel_token(const moe_delta_args *a, uint32_t t, const token_column *c)
{
    const float *decay = a->decay + t * a->decay_stride;
    float r = 0.0f, o = 0.0f;
    for (uint32_t i = 0; i < a->key_dim; i++)
        r = fmaf(decay[i] * c->state[(size_t)i * a->n], c->k[i], r);
    float d = a->beta[t] * (c->v - r);
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *s = &c->state[(size_t)i * a->n];
        *s = fmaf(c->k[i], d, decay[i] * *s);
        o = fmaf(*s, c->q[i], o);
    }
    return o;
}

static float space_token(const moe_delta_args *a, uint32_t t, const token_column *c)
{
    float d = a->beta[t] * c->v, o = 0.0f;
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *s = &c->state[(size_t)i * a->n];
        *s = fmaf(c->k[i], d, a->decay[t] * *s);
        o = fmaf(*s, c->q[i], o);
    }
    return fmaf(a->skip, c->v, o);
}

static void take_columns(const moe_delta_args *a,
                         float (*rule)(const moe_delta_args *, uint32_t, const token_column *))
{
    MOE_ASSERT(a->n > 0 && a->n <= MOE_DELTA_COLUMNS && a->key_dim <= MOE_DELTA_MAX_KEY_DIM);
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        for (uint32_t column = 0; column < a->n; column++) {
            token_column c = column_of(a, t, column);
            put_out(a, t, column, rule(a, t, &c));
        }
    }
}

void moe_delta_columns_c(const moe_delta_args *a)
{
    take_columns(a, delta_token);
}

void moe_channel_columns_c(const moe_delta_args *a)
{
    take_columns(a, channel_token);
}

void moe_space_columns_c(const moe_delta_args *a)
{
    take_columns(a, space_token);
}

static float scan_token(const moe_scan_args *a, uint32_t t, uint32_t column)
{
    const float *q = a->q + (size_t)t * a->n_rows, *k = a->k + (size_t)t * a->n_rows;
    float v = a->v[t * a->stride + column], o = 0.0f;
    float step = short_softplus(a->dt[t * a->stride + column] + a->dt_bias[column]);
    float d = step * v;
    for (uint32_t i = 0; i < a->n_rows; i++) {
        size_t at = (size_t)i * a->n + column;
        a->state[at] = fmaf(k[i], d, moe_exp(a->rate[at] * step) * a->state[at]);
        o = fmaf(a->state[at], q[i], o);
    }
    return fmaf(a->skip[column], v, o);
}

void moe_scan_columns_c(const moe_scan_args *a)
{
    MOE_ASSERT(a->n > 0 && a->n <= MOE_DELTA_COLUMNS && a->n_rows <= MOE_DELTA_MAX_KEY_DIM);
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        for (uint32_t column = 0; column < a->n; column++) {
            float o = scan_token(a, t, column);
            if (t >= a->n_silent)
                a->out[(t - a->n_silent) * a->out_stride + column] = o;
        }
    }
}
