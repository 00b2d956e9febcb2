/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/quant_rows.h"

#include "cpu/kernels/matmul_reference.h"

#include <math.h>
#include <string.h>

static size_t padded(uint32_t n_in)
{
    return ((size_t)n_in + 255) / 256 * 256;
}

/* Bytes of an array of count 4-byte elements, padded so that the next array starts on 64 bytes. */
static size_t array_bytes(size_t count)
{
    return (count * 4 + 63) / 64 * 64;
}

size_t moe_q8_rows_bytes(uint32_t n_rows, uint32_t n_in)
{
    const size_t n = n_rows * padded(n_in);
    return n + 3 * array_bytes(n / 32) + 2 * array_bytes(n / 16);
}

void moe_q8_rows_bind(moe_q8_rows *rows, void *scratch, uint32_t n_rows, uint32_t n_in)
{
    const size_t n = n_rows * padded(n_in);
    uint8_t *next = scratch;
    rows->n_rows = n_rows;
    rows->n_in = n_in;
    rows->n_in_padded = (uint32_t)padded(n_in);
    rows->q = (int8_t *)next;
    next += n;
    rows->d = (float *)next;
    next += array_bytes(n / 32);
    rows->sum16 = (int32_t *)next;
    next += array_bytes(n / 16);
    rows->sum32 = (int32_t *)next;
    next += array_bytes(n / 32);
    rows->dsum16 = (float *)next;
    next += array_bytes(n / 16);
    rows->dsum32 = (float *)next;
}

static void quantize_block(const float *x, const moe_q8_row *row, size_t b)
{
    float amax = 0;
    for (int i = 0; i < MOE_Q8_BLOCK; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
    }
    float inverse = amax > 0 ? 127 / amax : 0;
    if (isinf(inverse)) {
        inverse = 0;
    }
    const float d = amax / 127;
    int8_t *q = row->q + MOE_Q8_BLOCK * b;
    int32_t *sum16 = row->sum16 + 2 * b;
    sum16[0] = sum16[1] = 0;
    for (int i = 0; i < MOE_Q8_BLOCK; i++) {
        /* Adding 1.5 * 2^23 rounds to the nearest even integer, which is then in the low byte. */
        const float shifted = x[i] * inverse + 0x1.8p23f;
        memcpy(&q[i], &shifted, 1);
        sum16[i / 16] += q[i];
    }
    row->d[b] = d;
    row->sum32[b] = sum16[0] + sum16[1];
    row->dsum16[2 * b] = d * (float)sum16[0];
    row->dsum16[2 * b + 1] = d * (float)sum16[1];
    row->dsum32[b] = d * (float)row->sum32[b];
}

moe_q8_row moe_q8_row_clear_padding(moe_q8_rows *rows, size_t row)
{
    const size_t n = rows->n_in;
    const size_t n_padded = rows->n_in_padded;
    const size_t n_pad = n_padded - n;
    const moe_q8_row at = {.q = rows->q + row * n_padded,
                           .d = rows->d + row * (n_padded / 32),
                           .sum16 = rows->sum16 + row * (n_padded / 16),
                           .sum32 = rows->sum32 + row * (n_padded / 32),
                           .dsum16 = rows->dsum16 + row * (n_padded / 16),
                           .dsum32 = rows->dsum32 + row * (n_padded / 32)};
    memset(at.q + n, 0, n_pad);
    memset(at.d + n / 32, 0, n_pad / 32 * sizeof *at.d);
    memset(at.sum16 + n / 16, 0, n_pad / 16 * sizeof *at.sum16);
    memset(at.sum32 + n / 32, 0, n_pad / 32 * sizeof *at.sum32);
    memset(at.dsum16 + n / 16, 0, n_pad / 16 * sizeof *at.dsum16);
    memset(at.dsum32 + n / 32, 0, n_pad / 32 * sizeof *at.dsum32);
    return at;
}

void moe_quantize_rows_reference(const float *x, size_t x_stride, uint32_t n_rows, uint32_t n_in,
                                 moe_q8_rows *out, uint32_t first_row)
{
    (void)n_in; /* out->n_in, which the arrays were laid out for */
    for (size_t r = 0; r < n_rows; r++) {
        const moe_q8_row row = moe_q8_row_clear_padding(out, first_row + r);
        const float *source = x + r * x_stride;
        for (size_t b = 0; b < out->n_in / MOE_Q8_BLOCK; b++) {
            quantize_block(source + MOE_Q8_BLOCK * b, &row, b);
        }
    }
}
