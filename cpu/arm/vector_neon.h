/* SPDX-License-Identifier: MIT */
/* Sixteen lanes of floats in four vectors, by the contract of vector_ops.h, and the exponential. */
#ifndef MOE_ARM_VECTOR_NEON_H
#define MOE_ARM_VECTOR_NEON_H

#include "cpu/kernels/exp_constants.h"

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>

#define MOE_ARM_INLINE static inline __attribute__((always_inline))

typedef struct lanes16 {
    float32x4_t part[4];
} lanes16;

MOE_ARM_INLINE lanes16 lanes_load(const float *x)
{
    return (lanes16){{vld1q_f32(x), vld1q_f32(x + 4), vld1q_f32(x + 8), vld1q_f32(x + 12)}};
}

/* Loads half-precision floats; the conversion is exact. */
MOE_ARM_INLINE lanes16 lanes_load_half(const uint16_t *x)
{
    const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(x));
    const float16x8_t high = vreinterpretq_f16_u16(vld1q_u16(x + 8));
    return (lanes16){{vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low),
                      vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)}};
}

MOE_ARM_INLINE lanes16 lanes_load_bfloat(const uint16_t *x)
{
    lanes16 v;
    for (int i = 0; i < 4; i++) {
        v.part[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x + 4 * i), 16));
    }
    return v;
}

MOE_ARM_INLINE lanes16 lanes_fma(lanes16 acc, lanes16 a, lanes16 b)
{
    for (int i = 0; i < 4; i++) {
        acc.part[i] = vfmaq_f32(acc.part[i], a.part[i], b.part[i]);
    }
    return acc;
}

MOE_ARM_INLINE float lanes_reduce(lanes16 v)
{
    const float32x4_t four =
        vaddq_f32(vaddq_f32(v.part[0], v.part[2]), vaddq_f32(v.part[1], v.part[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* moe_exp() of four numbers. */
MOE_ARM_INLINE float32x4_t exp_neon(float32x4_t x)
{
    const float32x4_t n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(MOE_EXP_LOG2E)));
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-MOE_EXP_LN2_HI));
    r = vfmaq_f32(r, n, vdupq_n_f32(-MOE_EXP_LN2_LO));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C5), vdupq_n_f32(MOE_EXP_C6), r);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(MOE_EXP_C2), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    float32x4_t y = vmulq_f32(p, vreinterpretq_f32_s32(power));
    y = vbslq_f32(vcltq_f32(x, vdupq_n_f32(MOE_EXP_LOW)), vdupq_n_f32(0.0f), y);
    y = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(MOE_EXP_HIGH)), vdupq_n_f32(INFINITY), y);
    return vbslq_f32(vceqq_f32(x, x), y, x); /* a NaN stays one */
}

#endif
