/* SPDX-License-Identifier: MIT */
/* The arithmetic contract of matmul.h, word for word. A run of weights is unpacked once for up to
 * ROW_BLOCK activation rows, because unpacking costs more than the products. */
#include "cpu/kernels/matmul_reference.h"

#include "cpu/kernels/block_unpack.h"

#include <math.h>

enum { LANES = 16, ROW_BLOCK = 16 };

typedef struct lane_sums {
    float acc[LANES];
    float min_acc[LANES];
} lane_sums;

static float reduce(float *acc)
{
    for (int h = LANES / 2; h > 0; h /= 2) {
        for (int l = 0; l < h; l++) {
            acc[l] += acc[l + h];
        }
    }
    return acc[0];
}

static size_t source_row(const moe_matmul_args *args, uint32_t r)
{
    return args->x_index != NULL ? args->x_index[r] : r;
}

static float *target(const moe_matmul_args *args, uint32_t r, uint32_t o)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride + o;
}

/* n unpacked elements, the row's k-th onwards (k a multiple of MOE_GROUP), with activation row. */
static void accumulate(const moe_unpacked *w, uint32_t min_sub, const moe_q8_rows *x, size_t row,
                       uint32_t k, uint32_t n, lane_sums *sums)
{
    const int8_t *q = x->q + row * x->n_in_padded + k;
    const float *d = x->d + row * (x->n_in_padded / 32) + k / 32;
    for (uint32_t i = 0; i < n; i += 4) {
        const int s = w->code[i] * q[i] + w->code[i + 1] * q[i + 1] + w->code[i + 2] * q[i + 2] +
                      w->code[i + 3] * q[i + 3];
        float *acc = &sums->acc[i / 4 % LANES];
        *acc = fmaf(w->scale[i / 16] * d[i / 32], (float)s, *acc);
    }
    if (min_sub == 0) {
        return;
    }
    const float *dsum =
        (min_sub == 16 ? x->dsum16 : x->dsum32) + row * (x->n_in_padded / min_sub) + k / min_sub;
    for (uint32_t j = 0; j < n / min_sub; j++) {
        sums->min_acc[j] = fmaf(w->min[j], dsum[j], sums->min_acc[j]);
    }
}

static void quantized_row(const moe_matmul_args *args, uint32_t o, uint32_t first, uint32_t n_rows)
{
    const moe_block_format *format = moe_block_format_of(args->type);
    const uint8_t *weights = (const uint8_t *)args->weights + o * args->row_bytes;
    lane_sums sums[ROW_BLOCK] = {0};
    for (uint32_t k = 0; k < args->n_in; k += MOE_GROUP) {
        moe_unpacked w;
        const uint32_t n = args->n_in - k < MOE_GROUP ? args->n_in - k : MOE_GROUP;
        format->unpack(weights + moe_dtype_row_bytes(args->type, k), n, &w);
        for (uint32_t r = 0; r < n_rows; r++) {
            accumulate(&w, format->min_sub, args->x_q8, source_row(args, first + r), k, n,
                       &sums[r]);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const float sum = reduce(sums[r].acc);
        *target(args, first + r, o) = format->min_sub != 0 ? sum + reduce(sums[r].min_acc) : sum;
    }
}

void moe_matmul_quantized_reference(const moe_matmul_args *args)
{
    for (uint32_t o = 0; o < args->n_out; o++) {
        for (uint32_t r = 0; r < args->n_rows; r += ROW_BLOCK) {
            const uint32_t left = args->n_rows - r;
            quantized_row(args, o, r, left < ROW_BLOCK ? left : ROW_BLOCK);
        }
    }
}

static float float_weight(moe_dtype type, const uint8_t *row, uint32_t i)
{
    uint16_t half;
    float value;
    if (type == MOE_DTYPE_F32) {
        memcpy(&value, row + 4 * (size_t)i, 4);
        return value;
    }
    memcpy(&half, row + 2 * (size_t)i, 2);
    return type == MOE_DTYPE_F16 ? moe_half_to_float(half) : moe_bfloat_to_float(half);
}

void moe_matmul_float_reference(const moe_matmul_args *args)
{
    for (uint32_t o = 0; o < args->n_out; o++) {
        const uint8_t *weights = (const uint8_t *)args->weights + o * args->row_bytes;
        for (uint32_t r = 0; r < args->n_rows; r++) {
            const float *x = args->x + source_row(args, r) * args->x_stride;
            float acc[LANES] = {0};
            for (uint32_t i = 0; i < args->n_in; i++) {
                acc[i % LANES] = fmaf(float_weight(args->type, weights, i), x[i], acc[i % LANES]);
            }
            *target(args, r, o) = reduce(acc);
        }
    }
}
