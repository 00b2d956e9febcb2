/* SPDX-License-Identifier: MIT */
/* moe_tanh() on the sixteen lanes of lanes16_*.h, which is included first. */
#ifndef MOE_X86_TANH_LANES_H
#define MOE_X86_TANH_LANES_H

#include "cpu/kernels/tanh_constants.h"

static inline l16 l16_tanh(l16 x)
{
    l16 a = l16_max(x, l16_negate(x));
    l16 z = l16_mul(x, x);
    l16 p = l16_fma(l16_set(MOE_TANH_C4), z, l16_set(MOE_TANH_C3));
    p = l16_fma(p, z, l16_set(MOE_TANH_C2));
    p = l16_fma(p, z, l16_set(MOE_TANH_C1));
    p = l16_fma(p, z, l16_set(MOE_TANH_C0));
    l16 small = l16_fma(l16_mul(p, z), x, x);
    l16 divisor = l16_add(l16_exp(l16_add(a, a)), l16_set(1.0f));
    l16 large = l16_sub(l16_set(1.0f), l16_div(l16_set(2.0f), divisor));
    large = l16_pick_below(x, l16_zero(), l16_negate(large), large);
    return l16_pick_below(a, l16_set(MOE_TANH_SMALL), small, large);
}

static inline l16 l16_soft_cap(l16 cap, l16 x)
{
    return l16_mul(cap, l16_tanh(l16_div(x, cap)));
}

#endif
