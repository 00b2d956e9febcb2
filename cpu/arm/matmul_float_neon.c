/* SPDX-License-Identifier: MIT */
/* Float weights and the quantiser of activations with NEON. Four activation rows share a weight
 * row's vectors. */
#include "cpu/arm/matmul_arm.h"
#include "cpu/arm/vector_neon.h"
#include "cpu/kernels/block_formats.h"

#include <string.h>

enum { LANES = 16, TILE_ROWS = 4 };

MOE_ARM_INLINE lanes16 load_weights(moe_dtype type, const uint8_t *row, uint32_t i)
{
    if (type == MOE_DTYPE_F32) {
        return lanes_load((const float *)(const void *)row + i);
    }
    const uint16_t *halves = (const uint16_t *)(const void *)row + i;
    return type == MOE_DTYPE_F16 ? lanes_load_half(halves) : lanes_load_bfloat(halves);
}

MOE_ARM_INLINE float load_weight(moe_dtype type, const uint8_t *row, uint32_t i)
{
    uint16_t half;
    float value;
    if (type == MOE_DTYPE_F32) {
        memcpy(&value, row + 4 * (size_t)i, sizeof value);
        return value;
    }
    memcpy(&half, row + 2 * (size_t)i, sizeof half);
    return type == MOE_DTYPE_F16 ? moe_half_to_float(half) : moe_bfloat_to_float(half);
}

/* Adds the elements behind the last whole chunk. */
MOE_ARM_INLINE lanes16 add_rest(lanes16 acc, moe_dtype type, const uint8_t *row, const float *x,
                                uint32_t from, uint32_t n)
{
    float lanes[LANES];
    for (int i = 0; i < 4; i++) {
        vst1q_f32(lanes + 4 * i, acc.part[i]);
    }
    for (uint32_t i = from; i < n; i++) {
        lanes[i % LANES] = fmaf(load_weight(type, row, i), x[i], lanes[i % LANES]);
    }
    return lanes_load(lanes);
}

MOE_ARM_INLINE void multiply_tile(moe_dtype type, const moe_matmul_args *args, uint32_t o,
                                  uint32_t first, uint32_t n_rows)
{
    const uint8_t *row = (const uint8_t *)args->weights + o * args->row_bytes;
    const uint32_t whole = args->n_in / LANES * LANES;
    lanes16 acc[TILE_ROWS] = {0};
    const float *x[TILE_ROWS];
    for (uint32_t r = 0; r < n_rows; r++) {
        const size_t at = args->x_index != NULL ? args->x_index[first + r] : first + r;
        x[r] = args->x + at * args->x_stride;
    }
    for (uint32_t i = 0; i < whole; i += LANES) {
        const lanes16 w = load_weights(type, row, i);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < n_rows; r++) {
            acc[r] = lanes_fma(acc[r], w, lanes_load(x[r] + i));
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        if (whole < args->n_in) {
            acc[r] = add_rest(acc[r], type, row, x[r], whole, args->n_in);
        }
        const size_t at = args->out_index != NULL ? args->out_index[first + r] : first + r;
        args->out[at * args->out_stride + o] = lanes_reduce(acc[r]);
    }
}

MOE_ARM_INLINE void multiply(moe_dtype type, const moe_matmul_args *args)
{
    for (uint32_t o = 0; o < args->n_out; o++) {
        uint32_t r = 0;
        for (; r + TILE_ROWS <= args->n_rows; r += TILE_ROWS) {
            multiply_tile(type, args, o, r, TILE_ROWS);
        }
        for (; r < args->n_rows; r++) {
            multiply_tile(type, args, o, r, 1);
        }
    }
}

static void matmul_f32(const moe_matmul_args *args)
{
    multiply(MOE_DTYPE_F32, args);
}

static void matmul_f16(const moe_matmul_args *args)
{
    multiply(MOE_DTYPE_F16, args);
}

static void matmul_bf16(const moe_matmul_args *args)
{
    multiply(MOE_DTYPE_BF16, args);
}

/* ---- Activations to 8 bits ---- */

static void quantize_block(const float *x, const moe_q8_row *row, size_t b)
{
    float32x4_t v[8];
    float32x4_t most = vdupq_n_f32(0.0f);
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        most = vmaxq_f32(most, vabsq_f32(v[i]));
    }
    const float amax = vmaxvq_f32(most);
    float inverse = amax > 0 ? 127 / amax : 0;
    inverse = isinf(inverse) ? 0 : inverse;
    const float d = amax / 127;
    int32_t sums[2];
    for (int half = 0; half < 2; half++) {
        int16x8_t words[2];
        for (int i = 0; i < 2; i++) {
            const float32x4_t *four = v + 4 * half + 2 * i;
            const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(four[0], inverse));
            const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(four[1], inverse));
            words[i] = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
        }
        const int8x16_t codes = vcombine_s8(vmovn_s16(words[0]), vmovn_s16(words[1]));
        vst1q_s8(row->q + MOE_Q8_BLOCK * b + 16 * half, codes);
        sums[half] = vaddlvq_s8(codes);
    }
    row->d[b] = d;
    row->sum16[2 * b] = sums[0];
    row->sum16[2 * b + 1] = sums[1];
    row->sum32[b] = sums[0] + sums[1];
    row->dsum16[2 * b] = d * (float)sums[0];
    row->dsum16[2 * b + 1] = d * (float)sums[1];
    row->dsum32[b] = d * (float)row->sum32[b];
}

static void quantize_rows(const float *x, size_t x_stride, uint32_t n_rows, uint32_t n_in,
                          moe_q8_rows *out, uint32_t first_row)
{
    (void)n_in; /* out->n_in, which the arrays were laid out for */
    for (size_t r = 0; r < n_rows; r++) {
        const moe_q8_row row = moe_q8_row_clear_padding(out, first_row + r);
        for (size_t b = 0; b < out->n_in / MOE_Q8_BLOCK; b++) {
            quantize_block(x + r * x_stride + MOE_Q8_BLOCK * b, &row, b);
        }
    }
}

void moe_matmul_init_neon(moe_matmul_kernels *kernels)
{
    kernels->matmul[MOE_DTYPE_F32] = matmul_f32;
    kernels->matmul[MOE_DTYPE_F16] = matmul_f16;
    kernels->matmul[MOE_DTYPE_BF16] = matmul_bf16;
    kernels->quantize_rows = quantize_rows;
}
