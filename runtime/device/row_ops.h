/* SPDX-License-Identifier: MIT */
/* The part of the device contract for operations on the rows of a pass: products with weights,
 * routes, experts and their sums, norms, gates, residual streams (some models have several for each
 * row). */
#ifndef MOE_DEVICE_ROW_OPS_H
#define MOE_DEVICE_ROW_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/dtype.h"

/* A matrix in the device's memory: n_out rows of n_in elements in the file's block layout. */
typedef struct moe_weight {
    moe_dtype type;
    const void *data; /* device */
    uint32_t n_in;
    uint32_t n_out;
    size_t row_bytes;
    float scale; /* factor of the products, applied before a bias is added; 0: none */
} moe_weight;

/* The rows first .. first + n - 1 of a weight. */
static inline moe_weight moe_weight_rows(const moe_weight *weight, uint32_t first, uint32_t n)
{
    moe_weight part = *weight;
    part.data = (const unsigned char *)weight->data + first * weight->row_bytes;
    part.n_out = n;
    return part;
}

/* out[row][o] = weight row o . x row (+ bias[o]). */
typedef struct moe_linear {
    moe_weight weight;
    const float *bias; /* device, [n_out] or NULL */
    float *out;        /* device, [n_rows][n_out] */
} moe_linear;

/* For each head h: out[row][h][o] = weight row (h * n_out_per_head + o) . x[row][h]. */
typedef struct moe_head_linear {
    moe_weight weight; /* n_out = n_head * n_out_per_head */
    uint32_t n_head;
    const float *x; /* device, head h of row r at x + r * x_row_stride + h * x_head_stride */
    size_t x_row_stride;
    size_t x_head_stride;
    float *out; /* device, with strides likewise */
    size_t out_row_stride;
    size_t out_head_stride;
} moe_head_linear;

#define MOE_MAX_ROUTES 2u

/* How a router's logits become experts and weights (see cpu/kernels/router_select.h). */
typedef struct moe_route {
    const float *logits; /* device, [n_rows][n_expert] */
    uint32_t n_expert;
    uint32_t n_used;
    int gate; /* moe_gate_kind */
    bool renormalise;
    bool given; /* `experts` are given by the caller, not chosen */
    float scale;
    const float *selection_bias; /* device, [n_expert] or NULL */
    const float *expert_scales;  /* device, [n_expert] or NULL: factors of the weights */
    uint32_t n_group;
    uint32_t n_group_used;
    int group_score; /* moe_group_score_kind */
    /* These are valid when the call returns. */
    uint32_t *experts; /* host, out: [n_rows][n_used], best first */
    float *weights;    /* host, out: [n_rows][n_used] */
    float *probs;      /* host, out: [n_rows][n_expert] probabilities over all experts, or NULL */
} moe_route;

typedef enum moe_activation_kind {
    MOE_ACTIVATION_SILU, /* silu(gate) * up */
    /* As in cpu/kernels/vector_ops.h: */
    MOE_ACTIVATION_SWIGLU_CLAMPED,
    MOE_ACTIVATION_SILU_LIMITED, /* silu(gate) and up are limited */
    MOE_ACTIVATION_SILU_CLAMPED, /* gate and up are limited */
    MOE_ACTIVATION_GELU,
    MOE_ACTIVATION_RELU,
    MOE_ACTIVATION_SITU /* tanh limits the argument of SiLU, and up */
} moe_activation_kind;

typedef struct moe_activation {
    moe_activation_kind kind;
    float alpha; /* for SWIGLU_CLAMPED; for SITU the limit of gate */
    /* For SWIGLU_CLAMPED, SILU_LIMITED, SILU_CLAMPED; for SITU the limit of up, or 0. */
    float limit;
} moe_activation;

/* One expert and the rows that chose it: down . activation(gate . x, up . x), with a bias added to
 * each product. All works of a call have the same activation, and lack the same biases. */
typedef struct moe_expert_work {
    moe_weight gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* device, [n_out] each; NULL: none */
    moe_activation activation;
    /* Host, [n_rows] or NULL: factors of each row's products gate . x and up . x. Not together with
     * biases. */
    const float *x_scales;
    const uint32_t *x_index;   /* host, [n_rows]: rows of x; NULL: 0, 1, .. */
    const uint32_t *out_index; /* host, [n_rows]: rows of out; NULL: 0, 1, .. */
    uint32_t n_rows;
} moe_expert_work;

/* y[row] = sum over rank of weights[row][rank] * outs[row * n_ranks + rank], accumulated from +0 in
 * this order by fmaf. A rank here is an expert's place among the row's experts by ascending number
 * (moe_order_choice()). A rank of weight 0 (of either sign) is skipped: its row of outs is not read
 * and may hold anything, so a dropped expert needs no output. */
typedef struct moe_combine {
    const float *outs;    /* device, [n_rows * n_ranks][n] */
    const float *weights; /* host, [n_rows][n_ranks] */
    uint32_t n_ranks;
    uint32_t n;
    float *y;               /* device, [n_rows][n] */
    bool weights_on_device; /* `weights` is device memory */
} moe_combine;

/* combine(), add() and rms_norm() in one call, with the bits of the three:
 * sum = a + b; y = norm(sum) * weight. */
typedef struct moe_add_norm {
    const moe_combine *combine; /* gives b; NULL: b has been computed before */
    const float *a, *b;         /* device, [n_rows][n] */
    float *sum;                 /* device; may be a or b */
    const float *weight;        /* device, [n] */
    float *y;                   /* device, [n_rows][n]; overlaps none of the others */
    uint32_t n;
    float eps;
} moe_add_norm;

typedef enum moe_gating_kind {
    MOE_GATING_SIGMOID, /* 1 / (1 + exp(-g)) */
    MOE_GATING_SILU,    /* g / (1 + exp(-g)) */
    MOE_GATING_PLAIN,   /* g */
    MOE_GATING_SOFTPLUS /* log(1 + exp(g)) */
} moe_gating_kind;

/* x[row][i] *= f(gate[row][i]); SIGMOID and SILU by sigmoid_mul and silu_mul of
 * cpu/kernels/vector_ops.h, SOFTPLUS by moe_softplus of cpu/kernels/delta_rule.h. */
typedef struct moe_gating {
    moe_gating_kind kind;
    bool one;          /* SOFTPLUS: a row has one gate, gate[row][0] */
    const float *gate; /* device, [n_rows] rows of n, gate_stride floats apart */
    size_t gate_stride;
    float *x; /* device, rows likewise */
    size_t x_stride;
    uint32_t n;
} moe_gating;

/* Reads, for each row, the weighted sum of its residual streams. Products become weights in place,
 * each by t = fmaf(product, scale, base):
 *
 *    [n_streams]  weights of the sum: s + eps for s = 1 / (1 + exp(-t)), by sigmoid() of
 *                 cpu/kernels/vector_ops.h; y = fmaf(weight, x, y) from +0, streams ascending
 *    [n_streams]  weights of stream_write(): fmaf(magnitude, s, write_eps)
 *    [from][to]   weights of mixing: each row's softmax (from +0, columns ascending, less its
 *                 greatest) + eps; then columns are divided by (their sum from +0, rows
 *                 ascending, + eps); then, mixings - 1 times, rows likewise and columns again */
typedef struct moe_stream_read {
    const float *x; /* device, [n_rows][n_streams][n] */
    uint32_t n_streams, n;
    float *weights;     /* device, [n_rows][n_weights], in: products */
    uint32_t n_weights; /* of the first one, two or all three groups above */
    const float *base;  /* device, [n_weights] */
    const float *scale; /* device, one for each group above */
    float eps, magnitude, write_eps;
    uint32_t mixings; /* 0: streams are not mixed */
    /* Device, [n_rows][n_streams][n], or NULL; with MOE_FORM_STREAM_GATES. y is then the sum, from
     * the first stream on, of x / (1 + exp(-gate)) by sigmoid_mul(), times 1 / n_streams. The gates
     * are overwritten. If there are weights, they are only those of stream_write(): magnitude times
     * the sigmoid of (a product times 1 / n_streams). */
    float *gates;
    /* Device, [n], or NULL; with MOE_FORM_STREAM_RECALL. The weights, n_weights apart, are then
     * written: softmax() of dot(x, score) * inv, with inv as in rms_norm() with eps. The sum is as
     * above. */
    const float *score;
    uint32_t n_stored; /* streams that a row has; the first n_streams are read; 0: n_streams */
    float *y;          /* device, [n_rows][n] */
} moe_stream_read;

/* What a table adds to several streams. For each stream: s = key . query / sqrt(n), summed from +0;
 * r = sqrt(max(|s|, 1e-6)) with the sign of s (0 for 0); value / (1 + exp(-r)) replaces the key. */
typedef struct moe_stream_match {
    float *keys;          /* device, [n_rows][n_streams][n], in and out */
    const float *queries; /* device, [n_rows][n_streams][n] */
    const float *values;  /* device, [n_rows][n] */
    uint32_t n_streams, n;
} moe_stream_match;

/* x[stream] = fmaf(weight of the stream, branch, x[stream]). If streams are mixed, the x[stream]
 * on the right is the sum over `from`, ascending from +0, of fmaf(weight[from][stream], x[from],
 * sum). */
typedef struct moe_stream_write {
    float *x; /* device, [n_rows][n_streams][n] */
    uint32_t n_streams, n;
    const float *branch; /* device, [n_rows][n] */
    /* Device, [n_rows], weights_stride floats apart: [n_streams], followed by the weights of
     * mixing. */
    const float *weights;
    size_t weights_stride;
    bool mixes;
    /* weights NULL, with MOE_FORM_STREAM_RECALL: x[0] = x[0] + branch; or, if `begins` is not 0,
     * x[begins] = x[0], and then x[0] = branch. */
    uint32_t begins;
} moe_stream_write;

/* The greatest of a row of numbers, and its share in the row's softmax. The index ignores NaNs. The
 * share is NaN if any number is NaN, or if the greatest is infinite. */
typedef struct moe_greatest {
    uint32_t index; /* the lowest index of equal ones; 0 if no number is above -infinity */
    float share;    /* 1 / exp_sum(row, row[index]) of cpu/kernels/vector_ops.h */
} moe_greatest;

#endif
