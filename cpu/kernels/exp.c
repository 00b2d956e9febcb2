/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/exp_constants.h"
#include "cpu/kernels/vector_ops.h"

#include <math.h>
#include <string.h>

float moe_exp(float x)
{
    if (isnan(x))
        return x;
    if (x < MOE_EXP_LOW)
        return 0.0f;
    if (x > MOE_EXP_HIGH)
        return INFINITY;
    float n = rintf(x * MOE_EXP_LOG2E);
    float r = fmaf(n, -MOE_EXP_LN2_HI, x);
    r = fmaf(n, -MOE_EXP_LN2_LO, r);
    float p = fmaf(MOE_EXP_C6, r, MOE_EXP_C5);
    p = fmaf(p, r, MOE_EXP_C4);
    p = fmaf(p, r, MOE_EXP_C3);
    p = fmaf(p, r, MOE_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* n is in [-126, 127], so 2^n is a normal number and the product is exact. */
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}
