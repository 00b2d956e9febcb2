/* SPDX-License-Identifier: MIT */
/* Reference attention over one page, and the fold of pages into a running state.
 *
 * Both products, of keys and of values, read the page in pieces of 32 elements through
 * moe_kv_load_c(). So that function alone defines how rows of a cache type are read. */
#include "cpu/kernels/vector_reference.h"

#include <math.h>

#define PIECE 32 /* a multiple of MOE_LANES and of the cache's block */

/* Elements first .. first + count of a row; first is a multiple of PIECE. */
static void load_piece(moe_kv_type type, const uint8_t *row, uint32_t first, uint32_t count,
                       float piece[PIECE])
{
    moe_kv_load_c(type, row + moe_kv_row_bytes(type, first), piece, count);
}

static uint32_t piece_size(uint32_t first, uint32_t n)
{
    return n - first < PIECE ? n - first : PIECE;
}

static float dot_row(moe_kv_type type, const float *q, const uint8_t *row, uint32_t n)
{
    float lanes[MOE_LANES] = {0};
    float piece[PIECE];
    for (uint32_t first = 0; first < n; first += PIECE) {
        uint32_t count = piece_size(first, n);
        load_piece(type, row, first, count, piece);
        for (uint32_t i = 0; i < count; i++)
            lanes[i % MOE_LANES] = fmaf(q[first + i], piece[i], lanes[i % MOE_LANES]);
    }
    return moe_lanes_reduce(lanes);
}

/* out = sum over positions of weights[j] * v_j. */
static void weigh_values(const moe_attend_args *args, const float *weights, float *out)
{
    float piece[PIECE];
    for (uint32_t first = 0; first < args->v_dim; first += PIECE) {
        uint32_t count = piece_size(first, args->v_dim);
        float acc[PIECE] = {0};
        for (uint32_t j = 0; j < args->n_valid; j++) {
            load_piece(args->type, moe_page_row(args->v_rows, args->v, args->v_row_bytes, j), first,
                       count, piece);
            for (uint32_t i = 0; i < count; i++)
                acc[i] = fmaf(weights[j], piece[i], acc[i]);
        }
        for (uint32_t i = 0; i < count; i++)
            out[first + i] = acc[i];
    }
}

void moe_attend_page_c(const moe_attend_args *args)
{
    float weights[MOE_KV_PAGE]; /* at first the scores */
    for (uint32_t h = 0; h < args->n_q; h++) {
        const float *q = args->q + (size_t)h * args->k_dim;
        for (uint32_t j = 0; j < args->n_valid; j++) {
            const uint8_t *row = moe_page_row(args->k_rows, args->k, args->k_row_bytes, j);
            weights[j] = args->scale * dot_row(args->type, q, row, args->k_dim);
        }
        if (args->cap != 0.0f)
            moe_soft_cap_c(args->cap, weights, args->n_valid);
        float max = moe_vector_max_c(weights, args->n_valid) + 0.0f;
        float lanes[MOE_LANES] = {0};
        for (uint32_t j = 0; j < args->n_valid; j++) {
            weights[j] = moe_exp(weights[j] - max);
            lanes[j % MOE_LANES] += weights[j];
        }
        args->max[h] = max;
        args->sum[h] = moe_lanes_reduce(lanes);
        weigh_values(args, weights, args->out + (size_t)h * args->v_dim);
    }
}

void moe_attend_merge_c(float *max, float *sum, float *out, float page_max, float page_sum,
                        const float *page_out, uint32_t v_dim)
{
    float m = page_max > *max ? page_max : *max;
    float ca = *max == -INFINITY ? 0.0f : moe_exp(*max - m);
    float cb = page_max == -INFINITY ? 0.0f : moe_exp(page_max - m);
    *max = m;
    *sum = fmaf(*sum, ca, page_sum * cb);
    for (uint32_t i = 0; i < v_dim; i++)
        out[i] = fmaf(out[i], ca, page_out[i] * cb);
}
