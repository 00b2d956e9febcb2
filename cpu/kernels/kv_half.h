/* SPDX-License-Identifier: MIT */
/* Converts float32 to IEEE binary16 in software, with the bits of the F16C instructions: rounds to
 * nearest even, overflows to infinity, keeps subnormals, and makes NaNs quiet with the top of their
 * payload. moe_half_to_float() of block_formats.h converts back. */
#ifndef MOE_CPU_KV_HALF_H
#define MOE_CPU_KV_HALF_H

#include "cpu/kernels/block_formats.h"

#include <stdint.h>
#include <string.h>

static inline uint16_t moe_float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (abs >> 13 & 0x3ffu));
    if (abs >= 0x47800000u) /* 65536 or more; the carry below covers values that round up to it */
        return (uint16_t)(sign | 0x7c00u);
    if (abs < 0x33000000u) /* below 2^-25 */
        return (uint16_t)sign;
    uint32_t shift = 13;
    uint32_t significand = abs - 0x38000000u; /* exponent rebiased: 127 - 15 = 112 steps */
    if (abs < 0x38800000u) {                  /* below 2^-14: a subnormal half */
        shift = 126 - (abs >> 23);
        significand = (abs & 0x7fffffu) | 0x800000u;
    }
    uint32_t half = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1);
    uint32_t tie = 1u << (shift - 1);
    half += rest > tie || (rest == tie && (half & 1));
    return (uint16_t)(sign | half);
}

#endif
