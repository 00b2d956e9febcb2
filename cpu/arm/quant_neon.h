/* SPDX-License-Identifier: MIT */
/* Parts of quantised products with NEON: where rows are, sums of runs, and unpackers of blocks into
 * signed bytes, which the products need. The sums of a group of 256 elements are in vectors with
 * one run (the 16 or 32 elements that share a scale) in each lane, so that each lane of the
 * contract (matmul.h) is a lane here. */
#ifndef MOE_ARM_QUANT_NEON_H
#define MOE_ARM_QUANT_NEON_H

#include "cpu/kernels/block_unpack.h"
#include "cpu/kernels/matmul.h"

#include <arm_neon.h>
#include <math.h>

#define MOE_ARM_INLINE static inline __attribute__((always_inline))

/* Lanes 4i .. 4i + 3 in part i; types with runs of 32 use two parts. */
typedef struct lane_sums {
    float32x4_t part[4];
} lane_sums;

/* One activation row from element k (a multiple of 256) on. */
typedef struct x_row {
    const int8_t *q;
    const float *d;    /* one for each 32 elements */
    const float *dsum; /* one for each run */
} x_row;

MOE_ARM_INLINE x_row x_row_of(const moe_matmul_args *args, uint32_t r, uint32_t k, uint32_t run)
{
    const moe_q8_rows *x = args->x_q8;
    const size_t row = args->x_index != NULL ? args->x_index[r] : r;
    const size_t at = row * x->n_in_padded + k;
    return (x_row){x->q + at, x->d + at / 32, (run == 16 ? x->dsum16 : x->dsum32) + at / run};
}

MOE_ARM_INLINE float *out_at(const moe_matmul_args *args, uint32_t r, uint32_t o)
{
    return args->out + (args->out_index != NULL ? args->out_index[r] : r) * args->out_stride + o;
}

MOE_ARM_INLINE const uint8_t *weight_row(const moe_matmul_args *args, uint32_t o)
{
    return (const uint8_t *)args->weights + o * args->row_bytes;
}

/* The tree of matmul.h over 8 or 16 lanes. */
MOE_ARM_INLINE float reduce_lanes(lane_sums sums, uint32_t run)
{
    float32x4_t low = sums.part[0], high = sums.part[1];
    if (run == 16) {
        low = vaddq_f32(low, sums.part[2]);
        high = vaddq_f32(high, sums.part[3]);
    }
    const float32x4_t four = vaddq_f32(low, high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Scales, minima and d of the four runs from `first` on, a run in each lane. */
MOE_ARM_INLINE float32x4_t scales_of_runs(const moe_unpacked *w, uint32_t run, uint32_t first)
{
    return run == 16 ? vld1q_f32(w->scale + first) : vld2q_f32(w->scale + 2 * first).val[0];
}

MOE_ARM_INLINE float32x4_t d_of_runs(const float *d, uint32_t run, uint32_t first)
{
    if (run == 32) {
        return vld1q_f32(d + first);
    }
    const float32x2_t two = vld1_f32(d + first / 2);
    return vcombine_f32(vdup_lane_f32(two, 0), vdup_lane_f32(two, 1));
}

/* Adds scale * d * sum + min * dsum of the four runs from `first` on. */
MOE_ARM_INLINE float32x4_t add_runs(float32x4_t acc, int32x4_t sums, const moe_unpacked *w,
                                    const x_row *x, uint32_t run, bool has_mins, uint32_t first)
{
    const float32x4_t scale = vmulq_f32(scales_of_runs(w, run, first), d_of_runs(x->d, run, first));
    acc = vfmaq_f32(acc, scale, vcvtq_f32_s32(sums));
    return has_mins ? vfmaq_f32(acc, vld1q_f32(w->min + first), vld1q_f32(x->dsum + first)) : acc;
}

/* Adds the runs from `first` on of a group within which the row ends, one at a time. */
MOE_ARM_INLINE void add_last_runs(lane_sums *acc, const moe_unpacked *w, const x_row *x,
                                  uint32_t run, bool has_mins, uint32_t first, uint32_t n_runs)
{
    float lanes[16];
    for (int i = 0; i < 4; i++) {
        vst1q_f32(lanes + 4 * i, acc->part[i]);
    }
    for (uint32_t j = first; j < n_runs; j++) {
        int32_t sum = 0;
        for (uint32_t i = j * run; i < (j + 1) * run; i++) {
            sum += w->code[i] * x->q[i];
        }
        const float scale = w->scale[j * run / 16] * x->d[j * run / 32];
        lanes[j] = fmaf(scale, (float)sum, lanes[j]);
        if (has_mins) {
            lanes[j] = fmaf(w->min[j], x->dsum[j], lanes[j]);
        }
    }
    for (int i = 0; i < 4; i++) {
        acc->part[i] = vld1q_f32(lanes + 4 * i);
    }
}

/* ---- Unpackers: as moe_block_format.unpack, with vectors ---- */

/* 16 bytes whose halves are the codes of elements 0..15 and 16..31. */
MOE_ARM_INLINE void nibbles_neon(const uint8_t *qs, uint8x16_t *low, uint8x16_t *high)
{
    const uint8x16_t bytes = vld1q_u8(qs);
    *low = vandq_u8(bytes, vdupq_n_u8(15));
    *high = vshrq_n_u8(bytes, 4);
}

MOE_ARM_INLINE void store_codes(int8_t *code, uint8x16_t values, int offset)
{
    vst1q_s8(code, vsubq_s8(vreinterpretq_s8_u8(values), vdupq_n_s8((int8_t)offset)));
}

MOE_ARM_INLINE void unpack_q8_0_neon(const uint8_t *blocks, uint32_t n, moe_unpacked *out)
{
    for (uint32_t b = 0; b < n / 32; b++) {
        const moe_block_q8_0 *block = (const moe_block_q8_0 *)blocks + b;
        vst1q_s8(out->code + 32 * b, vld1q_s8((const int8_t *)block + 2));
        vst1q_s8(out->code + 32 * b + 16, vld1q_s8((const int8_t *)block + 18));
        out->scale[2 * b] = out->scale[2 * b + 1] = moe_half_to_float(block->d);
    }
}

MOE_ARM_INLINE void unpack_q4_0_neon(const uint8_t *blocks, uint32_t n, moe_unpacked *out)
{
    for (uint32_t b = 0; b < n / 32; b++) {
        const moe_block_q4_0 *block = (const moe_block_q4_0 *)blocks + b;
        uint8x16_t low, high;
        nibbles_neon(block->qs, &low, &high);
        store_codes(out->code + 32 * b, low, 8);
        store_codes(out->code + 32 * b + 16, high, 8);
        out->scale[2 * b] = out->scale[2 * b + 1] = moe_half_to_float(block->d);
    }
}

MOE_ARM_INLINE void unpack_mxfp4_neon(const uint8_t *blocks, uint32_t n, moe_unpacked *out)
{
    static const int8_t points[16] = {MOE_MXFP4_CODES};
    const int8x16_t table = vld1q_s8(points);
    for (uint32_t b = 0; b < n / 32; b++) {
        const moe_block_mxfp4 *block = (const moe_block_mxfp4 *)blocks + b;
        uint8x16_t low, high;
        nibbles_neon(block->qs, &low, &high);
        vst1q_s8(out->code + 32 * b, vqtbl1q_s8(table, low));
        vst1q_s8(out->code + 32 * b + 16, vqtbl1q_s8(table, high));
        out->scale[2 * b] = out->scale[2 * b + 1] = moe_float_of_bits(moe_e8m0_half_bits(block->e));
    }
}

/* Scales and minima of Q4_K and Q5_K: eight of 6 bits each in 12 bytes. */
MOE_ARM_INLINE void scales_of_k4_neon(uint16_t d_half, uint16_t dmin_half, const uint8_t *s,
                                      moe_unpacked *out)
{
    const float d = moe_half_to_float(d_half);
    const float dmin = moe_half_to_float(dmin_half);
    for (int j = 0; j < 8; j++) {
        const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (float)scale;
        out->min[j] = -(dmin * (float)min);
    }
}

MOE_ARM_INLINE void unpack_q4_k_neon(const uint8_t *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q4_k *block = (const moe_block_q4_k *)blocks;
    (void)n; /* always a whole group, because a block is one */
    scales_of_k4_neon(block->d, block->dmin, block->scales, out);
    for (int j = 0; j < 4; j++) {
        for (int half = 0; half < 2; half++) {
            uint8x16_t low, high;
            nibbles_neon(block->qs + 32 * j + 16 * half, &low, &high);
            store_codes(out->code + 64 * j + 16 * half, low, 0);
            store_codes(out->code + 64 * j + 32 + 16 * half, high, 0);
        }
    }
}

MOE_ARM_INLINE void unpack_q5_k_neon(const uint8_t *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q5_k *block = (const moe_block_q5_k *)blocks;
    (void)n;
    scales_of_k4_neon(block->d, block->dmin, block->scales, out);
    for (int half = 0; half < 2; half++) {
        uint8x16_t fifth = vld1q_u8(block->qh + 16 * half);
        for (int j = 0; j < 4; j++) {
            uint8x16_t low, high;
            nibbles_neon(block->qs + 32 * j + 16 * half, &low, &high);
            low = vorrq_u8(low, vshlq_n_u8(vandq_u8(fifth, vdupq_n_u8(1)), 4));
            high = vorrq_u8(high, vshlq_n_u8(vandq_u8(fifth, vdupq_n_u8(2)), 3));
            fifth = vshrq_n_u8(fifth, 2);
            store_codes(out->code + 64 * j + 16 * half, low, 0);
            store_codes(out->code + 64 * j + 32 + 16 * half, high, 0);
        }
    }
}

MOE_ARM_INLINE void unpack_q6_k_neon(const uint8_t *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q6_k *block = (const moe_block_q6_k *)blocks;
    const float d = moe_half_to_float(block->d);
    (void)n;
    for (int j = 0; j < 16; j++) {
        out->scale[j] = d * (float)((const int8_t *)blocks)[192 + j];
    }
    for (int part = 0; part < 4; part++) { /* 16 lanes of each half of 128 */
        const int half = part / 2, lane = 16 * (part % 2);
        const uint8x16_t upper = vld1q_u8(block->qh + 32 * half + lane);
        int8_t *code = out->code + 128 * half + lane;
        uint8x16_t low[2], high[2];
        nibbles_neon(block->ql + 64 * half + lane, &low[0], &high[0]);
        nibbles_neon(block->ql + 64 * half + 32 + lane, &low[1], &high[1]);
        const uint8x16_t two = vdupq_n_u8(0x30);
        store_codes(code, vorrq_u8(low[0], vandq_u8(vshlq_n_u8(upper, 4), two)), 32);
        store_codes(code + 32, vorrq_u8(low[1], vandq_u8(vshlq_n_u8(upper, 2), two)), 32);
        store_codes(code + 64, vorrq_u8(high[0], vandq_u8(upper, two)), 32);
        store_codes(code + 96, vorrq_u8(high[1], vandq_u8(vshrq_n_u8(upper, 2), two)), 32);
    }
}

/* The types that have an unpacker here; all other types use the unpacker of reference C. The list
 * is a macro so that the compiler knows the run length and whether there are minima. */
#define MOE_ARM_UNPACKED_TYPES(X, arg)                                                             \
    X(MOE_DTYPE_Q8_0, q8_0, 32, false, arg)                                                        \
    X(MOE_DTYPE_Q4_0, q4_0, 32, false, arg)                                                        \
    X(MOE_DTYPE_MXFP4, mxfp4, 32, false, arg)                                                      \
    X(MOE_DTYPE_Q4_K, q4_k, 32, true, arg)                                                         \
    X(MOE_DTYPE_Q5_K, q5_k, 32, true, arg)                                                         \
    X(MOE_DTYPE_Q6_K, q6_k, 16, false, arg)

typedef void unpack_neon_fn(const uint8_t *blocks, uint32_t n, moe_unpacked *out);

#endif
