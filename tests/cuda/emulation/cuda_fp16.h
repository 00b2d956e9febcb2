/* SPDX-License-Identifier: MIT */
/* Stands in for CUDA's header of this name: conversions of halves, in software. */
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
    return moe_half_to_float(half.bits);
}

static inline __half __float2half_rn(float value)
{
    return __half{moe_float_to_half(value)};
}

#endif
