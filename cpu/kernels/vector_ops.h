/* SPDX-License-Identifier: MIT */
/* Everything of the forward pass that is not a weight product: norms, rotary embedding, activation,
 * conversion, exponentials and attention over one page of the KV cache.
 *
 * Arithmetic contract: reference, AVX2 and AVX-512 give the same bits. Sums over a vector use 16
 * lanes (element i in lane i mod 16, fmaf or add in order) and the tree of matmul.h (h = 8, 4, 2, 1).
 * Division and square root are IEEE. The exponential is moe_exp() below, never libm's. Files are
 * compiled with -ffp-contract=off. */
#ifndef MOE_CPU_VECTOR_OPS_H
#define MOE_CPU_VECTOR_OPS_H

#include <stddef.h>
#include <stdint.h>

/* exp(x): n = rint(x * log2(e)); r = fmaf(n, -ln2_hi, x), then fmaf(n, -ln2_lo, r); a polynomial in r
 * by fmaf (Horner); scaled by 2^n. x < -87 gives 0; x > 88 gives +infinity; NaN stays NaN. Error
 * <= 2 ulp. */
float moe_exp(float x);

typedef enum moe_kv_type { MOE_KV_F16 = 0, MOE_KV_F32 = 1, MOE_KV_Q8_0 = 2 } moe_kv_type;

/* Positions of a page of the KV cache, and of a block of attention's fixed reduction order. */
#define MOE_KV_PAGE 64

/* Bytes of one position's vector of n elements; Q8_0 needs n % 32 == 0 (blocks as in the file
 * format: f16 scale, 32 int8). */
size_t moe_kv_row_bytes(moe_kv_type type, uint32_t n);

/* One page of one KV head, attended to by the n_q query heads that share it. */
typedef struct moe_attend_args {
    moe_kv_type type;
    const void *k;        /* [MOE_KV_PAGE][k_row_bytes] */
    const void *v;        /* [MOE_KV_PAGE][v_row_bytes]; may alias k (MLA) */
    size_t k_row_bytes;
    size_t v_row_bytes;
    uint32_t k_dim;       /* multiples of 8 are fast, any value is right */
    uint32_t v_dim;
    uint32_t n_valid;     /* 1..MOE_KV_PAGE positions are attended to */
    const uint8_t *slots; /* logical position j of the page is in slot slots[j]; NULL: j */
    uint32_t n_q;
    const float *q;       /* [n_q][k_dim] */
    float scale;
    float *max;           /* [n_q] out: max_j s_j */
    float *sum;           /* [n_q] out: sum_j exp(s_j - max), lanes j mod 16 */
    float *out;           /* [n_q][v_dim] out: sum_j exp(s_j - max) * v_j, fmaf, j ascending */
} moe_attend_args;        /* s_j = scale * (q . k_j), the dot in 16 lanes as float matmul */

typedef struct moe_vector_kernels {
    /* y = x / sqrt(mean(x^2) + eps) * w, as (x * inv) * w; inv = 1 / sqrtf(sum / n + eps) */
    void (*rms_norm)(const float *x, const float *w, float *y, uint32_t n, float eps);
    /* In place on one head: pairs (x0, x1) -> (x0*c - x1*s, x0*s + x1*c), each as
     * fmaf(x0, c, -(x1*s)) and fmaf(x0, s, x1*c). */
    void (*rope_interleaved)(float *x, const float *cos, const float *sin, uint32_t n_rot);
    void (*rope_halves)(float *x, const float *cos, const float *sin, uint32_t n_rot);
    /* y = g / (1 + exp(-g)) * u */
    void (*silu_mul)(const float *g, const float *u, float *y, uint32_t n);
    void (*add)(const float *a, const float *b, float *y, uint32_t n);
    /* acc = fmaf(w, x, acc) */
    void (*axpy)(float w, const float *x, float *acc, uint32_t n);
    void (*scale)(float w, float *x, uint32_t n);
    void (*clamp)(float limit, float *x, uint32_t n); /* to [-limit, limit] */
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* In place: x_i = exp(x_i - max) / sum; lanes as above. */
    void (*softmax)(float *x, uint32_t n);
    /* Lowest index of the greatest value; NaNs never win. */
    uint32_t (*argmax)(const float *x, uint32_t n);
    /* Conversion of a row to the cache's type and back (round to nearest even). */
    void (*kv_store)(moe_kv_type type, const float *x, void *row, uint32_t n);
    void (*kv_load)(moe_kv_type type, const void *row, float *x, uint32_t n);
    void (*attend_page)(const moe_attend_args *args);
    /* Folds a page's (max, sum, out) into a running state, pages ascending. An empty state has max =
     * -infinity. m = max(a, b); ca = exp(a - m), cb = exp(b - m) (0 for -infinity);
     * sum = fmaf(sum_a, ca, sum_b * cb); out = fmaf(out_a, ca, out_b * cb). */
    void (*attend_merge)(float *max, float *sum, float *out, float page_max, float page_sum,
                         const float *page_out, uint32_t v_dim);
} moe_vector_kernels;

void moe_vector_kernels_init(moe_vector_kernels *kernels, unsigned cpu_features);

#endif
