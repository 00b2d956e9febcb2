/* SPDX-License-Identifier: MIT */
/* Stands in for CUDA's header of this name: conversions of halves, in software. NaNs come out as
 * the hardware's one NaN, whatever went in. */
#ifndef MOE_EMULATION_CUDA_FP16_H
#define MOE_EMULATION_CUDA_FP16_H

#include "cpu/kernels/kv_half.h"

struct __half {
    uint16_t bits;
};

static inline __half __ushort_as_half(uint16_t bits)
{
    return __half{bits};
}

static inline uint16_t __half_as_ushort(__half half)
{
    return half.bits;
}

static inline float __half2float(__half half)
{
    float value = moe_half_to_float(half.bits);
    return value == value ? value : __builtin_nanf("0x3fffff");
}

static inline __half __float2half_rn(float value)
{
    return __half{value == value ? moe_float_to_half(value) : (uint16_t)0x7fff};
}

#endif
