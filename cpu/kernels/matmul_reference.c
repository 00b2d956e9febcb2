/* SPDX-License-Identifier: MIT */
/* The arithmetic contract of matmul.h, word for word. A run of weights is unpacked once for up to
 * ROW_BLOCK activation rows, because unpacking costs more than the products. */
#include "cpu/kernels/matmul_reference.h"

#include "cpu/kernels/block_unpack.h"

#include <math.h>

enum { LANES = 16, ROW_BLOCK = 16 };

typedef struct lane_sums {
    float acc[LANES];
} lane_sums;

static float reduce(float *acc, uint32_t n_lanes)
{
    for (uint32_t h = n_lanes / 2; h > 0; h /= 2) {
        for (uint32_t l = 0; l < h; l++) {
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

/* Multiplies n unpacked elements, from the row's k-th on (k a multiple of MOE_GROUP), with an
 * activation row. */
static void accumulate(const moe_unpacked *w, const moe_block_format *format, const moe_q8_rows *x,
                       size_t row, uint32_t k, uint32_t n, float *acc)
{
    const size_t at = row * x->n_in_padded + k;
    const int8_t *q = x->q + at;
    const float *dsum = format->run == 16 ? x->dsum16 + at / 16 : x->dsum32 + at / 32;
    for (uint32_t j = 0; j < n / format->run; j++) {
        const uint32_t first = j * format->run;
        int s = 0;
        for (uint32_t i = first; i < first + format->run; i++) {
            s += w->code[i] * q[i];
        }
        acc[j] = fmaf(w->scale[first / 16] * x->d[(at + first) / 32], (float)s, acc[j]);
        if (format->has_mins) {
            acc[j] = fmaf(w->min[j], dsum[j], acc[j]);
        }
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
            accumulate(&w, format, args->x_q8, source_row(args, first + r), k, n, sums[r].acc);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const float sum = reduce(sums[r].acc, MOE_GROUP / format->run);
        *target(args, first + r, o) = moe_row_scale(args->type, weights) * sum;
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
            *target(args, r, o) = reduce(acc, LANES);
        }
    }
}
