/* SPDX-License-Identifier: MIT */
/* The reference kernels of vector_ops.h by name, and the pieces they share. */
#ifndef MOE_CPU_VECTOR_REFERENCE_H
#define MOE_CPU_VECTOR_REFERENCE_H

#include "cpu/kernels/vector_ops.h"

#define MOE_LANES 16

/* Folds sixteen accumulators in the fixed order h = 8, 4, 2, 1. Destroys lanes. */
static inline float moe_lanes_reduce(float lanes[MOE_LANES])
{
    for (uint32_t h = MOE_LANES / 2; h > 0; h /= 2)
        for (uint32_t l = 0; l < h; l++)
            lanes[l] += lanes[l + h];
    return lanes[0];
}

/* A row of a page's keys or values: at its address in `rows`, or, without `rows`, at the position's
 * place in `page`. */
static inline const uint8_t *moe_page_row(const void *const *rows, const void *page,
                                          size_t row_bytes, uint32_t position)
{
    return rows != NULL ? rows[position] : (const uint8_t *)page + position * row_bytes;
}

/* The greatest value, ignoring NaNs; -infinity if there is no other. A zero may have either sign.
 */
float moe_vector_max_c(const float *x, uint32_t n);

void moe_soft_cap_c(float cap, float *x, uint32_t n);
void moe_layer_norm_c(const float *x, const float *w, const float *b, float *y, uint32_t n,
                      float eps);
void moe_gelu_mul_c(const float *g, const float *u, float *y, uint32_t n);
void moe_relu_mul_c(const float *g, const float *u, float *y, uint32_t n);
void moe_silu_limited_c(const float *g, const float *u, float *y, uint32_t n, float limit);
void moe_situ_mul_c(const float *g, const float *u, float *y, uint32_t n, float beta, float limit);
void moe_silu_clamped_c(const float *g, const float *u, float *y, uint32_t n, float limit);
void moe_sigmoid_c(float *x, uint32_t n);
void moe_softmax_c(float *x, uint32_t n);
double moe_log_softmax_at_c(const float *logits, uint32_t n, uint32_t index);
void moe_kv_store_c(moe_kv_type type, const float *x, void *row, uint32_t n);
void moe_kv_load_c(moe_kv_type type, const void *row, float *x, uint32_t n);
void moe_attend_page_c(const moe_attend_args *args);
void moe_attend_merge_c(float *max, float *sum, float *out, float page_max, float page_sum,
                        const float *page_out, uint32_t v_dim);

#endif
