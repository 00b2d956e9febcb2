/* SPDX-License-Identifier: MIT */
/* Everything of the forward pass that is not a weight product: norms, rotary embedding, activation,
 * conversion, exponentials, expert selection and attention over one page of the KV cache.
 *
 * Arithmetic contract: reference, AVX2, AVX-512 and CUDA give the same bits.
 *   - Sums over a vector use 16 lanes that start at +0. Element i is added to lane i mod 16, by
 *     fmaf or by an addition, in order. Lanes without an element in a last, partial chunk stay as
 *     they are. Then the tree of matmul.h adds the lanes: for h = 8, 4, 2, 1: lane[l] += lane[l +
 *     h] for l < h.
 *   - Expressions are evaluated as written, left to right, each operation rounded once. Division
 *     and square root are IEEE; subnormals are kept. The exponential is moe_exp(), never libm's.
 *   - Maxima start at -infinity and take x > m ? x : m, so NaNs are passed over. The order of the
 *     comparisons can only change the sign of a zero, and no result here depends on that sign:
 *     where a maximum is stored, its zero is +0.
 *   - The sign and payload of a NaN are no part of the contract.
 * Files are compiled with -ffp-contract=off. Pointers need the alignment of their type; rows of the
 * KV cache need none. In-place use (y == x, y == g ...) is allowed, partial overlap is not. */
#ifndef MOE_CPU_VECTOR_OPS_H
#define MOE_CPU_VECTOR_OPS_H

#include "cpu/kernels/delta_rule.h"
#include "cpu/kernels/router_select.h"

#include <stddef.h>
#include <stdint.h>

/* exp(x): n = rint(x * log2e), the product rounded to float; r = fmaf(n, -ln2_hi, x), then
 * r = fmaf(n, -ln2_lo, r); p = C6, then p = fmaf(p, r, C) for C5, C4, C3, C2, 1, 1. The result is
 * p * 2^n, which is exact. Constants are in exp_constants.h. x < -87 gives +0; x > 88 gives
 * +infinity; NaN stays NaN. In between the error is below 1 ulp. */
float moe_exp(float x);

/* tanh(x): if |x| is below MOE_TANH_SMALL, the polynomial of tanh_constants.h, as fmaf(p * z, x, x)
 * with p one Horner chain by fmaf; else 1 - 2 / (exp(|x| + |x|) + 1) with x's sign. The error is
 * below 3 ulp. */
float moe_tanh(float x);

typedef enum moe_kv_type {
    MOE_KV_F16 = 0,
    MOE_KV_F32 = 1,
    MOE_KV_Q8_0 = 2,
    MOE_KV_Q4_0 = 3,
    MOE_KV_F8 = 4
} moe_kv_type;

/* Positions of a page of the KV cache. Attention reduces page by page, in a fixed order. */
#define MOE_KV_PAGE 64

/* What a row of the cache holds.
 * F16: rounded to nearest even, as the F16C instructions do; |x| >= 65520 overflows to infinity,
 *   subnormals are kept.
 * F32: the value.
 * Q8_0: n % 32 == 0, blocks laid out as in the file format (f16 scale d, 32 int8 q).
 *   d = f16(max |x_i| / 127); id = d > 0 ? 1 / d : 0; q_i = rint(x_i * id), clamped to [-127, 127].
 *   id is computed from the *rounded* d, so that d's rounding error does not add to that of the
 *   codes. The block loads as d * q_i, which is exact. If d is not finite in f16 (the block has an
 *   infinity, a NaN, or a value beyond 8e6), the block gets d = MOE_KV_Q8_NAN and q = 0, and loads
 *   as NaNs, so that damage is not hidden.
 * Q4_0: n % 32 == 0, blocks laid out as in the file format (f16 d; byte i holds element i in its
 *   low half and element 16 + i in its high half). m is the first of the values of the greatest
 *   magnitude; d = f16(m / -8); id = d != 0 ? 1 / d : 0, from the rounded d; q_i = rint(x_i * id)
 *   + 8, clamped to [0, 15]. The block loads as d * (q_i - 8). A d that is not finite in f16 is
 *   replaced as for Q8_0.
 * F8: E4M3, a byte for each element (sign, 4 bits of exponent with bias 7, 3 of significand; no
 *   infinity), rounded to nearest even. |x| above 448 becomes 448; an infinity or a NaN becomes the
 *   NaN, 0x7f. */
#define MOE_KV_Q4_BYTES 18
#define MOE_KV_Q8_BLOCK 32
#define MOE_KV_Q8_BYTES 34
#define MOE_KV_Q8_NAN   0x7e00

/* Bytes of one position's vector of n elements. */
size_t moe_kv_row_bytes(moe_kv_type type, uint32_t n);

/* One page of one KV head, attended to by the n_q query heads that share it. */
typedef struct moe_attend_args {
    moe_kv_type type;
    const void *k; /* [MOE_KV_PAGE][k_row_bytes]; unused with k_rows */
    const void *v; /* [MOE_KV_PAGE][v_row_bytes]; may alias k (MLA); unused with v_rows */
    size_t k_row_bytes;
    size_t v_row_bytes;
    /* For a page whose positions lie in several pages of the cache: where the key and value of
     * position j < n_valid are. If both are NULL, positions are in order in k and v. The bits are
     * the same either way. */
    const void *const *k_rows;
    const void *const *v_rows; /* may alias k_rows */
    /* NULL, or the keys of the page that the caller attends to next, as many positions as here and
     * in order. This call only prefetches them into the caches. */
    const void *next_k;
    uint32_t k_dim; /* multiples of 32 are fast, any value is correct */
    uint32_t v_dim;
    uint32_t n_valid; /* 1..MOE_KV_PAGE positions are attended to */
    uint32_t n_q;     /* any number, a multiple of 4 is fast */
    const float *q;   /* [n_q][k_dim] */
    float scale;
    float cap;  /* 0: none; else scores are capped by `cap`, as soft_cap() does */
    float *max; /* [n_q] out: max_j s_j, a zero as +0 */
    float *sum; /* [n_q] out: sum_j exp(s_j - max), lanes j mod 16 */
    float *out; /* [n_q][v_dim] out, from +0: out = fmaf(exp(s_j - max), v_j, out), j ascending */
} moe_attend_args; /* s_j = scale * (q . k_j), the dot in 16 lanes over k_j as it loads */

#define MOE_EXP_SUM_LANES 512
#define MOE_SCORED_KEYS   16

typedef struct moe_vector_kernels {
    /* y = x / sqrt(mean(x^2) + eps) * w, as (x * inv) * w; inv = 1 / sqrtf(sum / n + eps), the sum
     * as dot(x, x) */
    void (*rms_norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    /* In place on one head: pairs (x0, x1) -> (x0*c - x1*s, x0*s + x1*c), each as
     * fmaf(x0, c, -(x1*s)) and fmaf(x0, s, x1*c). Pair i is (x[2i], x[2i + 1]), or for halves
     * (x[i], x[n_rot / 2 + i]); cos, sin: [n_rot / 2]. */
    void (*rope_interleaved)(float *x, const float *cos, const float *sin, uint32_t n_rot);
    void (*rope_halves)(float *x, const float *cos, const float *sin, uint32_t n_rot);
    /* y = g / (1 + exp(-g)) * u */
    void (*silu_mul)(const float *g, const float *u, float *y, uint32_t n);
    /* y = 1 / (1 + exp(-g)) * x */
    void (*sigmoid_mul)(const float *g, const float *x, float *y, uint32_t n);
    /* gpt-oss: a = limit < g ? limit : g; b = u likewise, then -limit > b ? -limit : b;
     * y = a / (1 + exp(-(alpha * a))) * (b + 1) */
    void (*swiglu_clamped)(const float *g, const float *u, float *y, uint32_t n, float alpha,
                           float limit);
    /* y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b, as (((x - mean) * inv) * w) + b: the
     * mean is the sum, lanes as above, divided by n; inv = 1 / sqrtf(sum of fmaf squares / n +
     * eps). b: NULL or [n]. */
    void (*layer_norm)(const float *x, const float *w, const float *b, float *y, uint32_t n,
                       float eps);
    /* GELU by its tanh formula, which is g * sigmoid(2 t): y = g / (1 + exp(-t)) * u,
     * t = g * fmaf(MOE_GELU_B, g * g, MOE_GELU_A) */
    void (*gelu_mul)(const float *g, const float *u, float *y, uint32_t n);
    /* y = (0 > g ? 0 : g) * u */
    void (*relu_mul)(const float *g, const float *u, float *y, uint32_t n);
    /* Step-3.5: a = g / (1 + exp(-g)), limit < a ? limit : a; b = u to [-limit, limit] as in
     * swiglu_clamped; y = a * b */
    void (*silu_limited)(const float *g, const float *u, float *y, uint32_t n, float limit);
    /* DeepSeek-V4, Hunyuan-4: a and b as in swiglu_clamped; y = a / (1 + exp(-a)) * b */
    void (*silu_clamped)(const float *g, const float *u, float *y, uint32_t n, float limit);
    /* Kimi-K3: a = beta * tanh(g / beta), b = limit * tanh(u / limit), or u if the limit is 0;
     * y = a / (1 + exp(-g)) * b */
    void (*situ_mul)(const float *g, const float *u, float *y, uint32_t n, float beta, float limit);
    /* In place: x = cap * tanh(x / cap) */
    void (*soft_cap)(float cap, float *x, uint32_t n);
    /* In place: x = 1 / (1 + exp(-x)) */
    void (*sigmoid)(float *x, uint32_t n);
    void (*add)(const float *a, const float *b, float *y, uint32_t n);
    /* acc = fmaf(w, x, acc) */
    void (*axpy)(float w, const float *x, float *acc, uint32_t n);
    /* acc = fmaf(w, x > 0 ? x : 0, acc) */
    void (*relu_axpy)(float w, const float *x, float *acc, uint32_t n);
    /* Scores of MOE_SCORED_KEYS keys for one row: products are summed in lanes and by the tree as
     * above; then score = fmaf(w, product > 0 ? product : 0, score) over heads, from +0. keys:
     * [dim][MOE_SCORED_KEYS], so lanes of keys stand side by side; q: [n_head][dim]; w: [n_head];
     * scores: [MOE_SCORED_KEYS]. */
    void (*score_keys)(const float *keys, const float *q, const float *w, uint32_t n_head,
                       uint32_t dim, float *scores);
    void (*scale)(float w, float *x, uint32_t n);
    /* Clamps to [-limit, limit]; NaN stays NaN. */
    void (*clamp)(float limit, float *x, uint32_t n);
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* In place: x_i = exp(x_i - max) / sum; lanes as above. The results are NaNs if any x_i is a
     * NaN or +infinity, or if all are -infinity. */
    void (*softmax)(float *x, uint32_t n);
    /* Sum of exp(x_i - max), for rows as long as a vocabulary. There are MOE_EXP_SUM_LANES lanes,
     * and the tree begins with half of them; otherwise the sum is as above. */
    float (*exp_sum)(const float *x, uint32_t n, float max);
    /* ln softmax(logits)[index], for perplexity: the sum is in double, in order, with libm's exp
     * and log. */
    double (*log_softmax_at)(const float *logits, uint32_t n, uint32_t index);
    /* Lowest index of the greatest value. NaNs never win; 0 if all values are NaN. */
    uint32_t (*argmax)(const float *x, uint32_t n);
    /* Convert a row to the cache's type and back. */
    void (*kv_store)(moe_kv_type type, const float *x, void *row, uint32_t n);
    void (*kv_load)(moe_kv_type type, const void *row, float *x, uint32_t n);
    void (*attend_page)(const moe_attend_args *args);
    /* Folds a page's (max, sum, out) into a running state, pages ascending. An empty state is max =
     * -infinity, sum = 0, out = 0. m = b > a ? b : a; ca = exp(a - m), cb = exp(b - m) (0 for
     * -infinity); sum = fmaf(sum_a, ca, sum_b * cb); out = fmaf(out_a, ca, out_b * cb). */
    void (*attend_merge)(float *max, float *sum, float *out, float page_max, float page_sum,
                         const float *page_out, uint32_t v_dim);
    moe_convolve_fn convolve;
    moe_row_decays_fn row_decays;
    moe_bounded_decays_fn bounded_decays;
    moe_delta_columns_fn delta_columns;
    moe_delta_columns_fn channel_columns;
    moe_delta_columns_fn space_columns;
    moe_scan_columns_fn scan_columns;
    moe_router_select_fn router_select;
} moe_vector_kernels;

/* Fills the table with reference C, then overrides entries with the faster kernels that
 * cpu_features (moe_cpu_features() or a subset of it) allows. */
void moe_vector_kernels_init(moe_vector_kernels *kernels, unsigned cpu_features);

#endif
