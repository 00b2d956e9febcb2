/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_rows.h"

#include <math.h>
#include <string.h>

/* The contract of quant_rows.h. */
static float pack_block(const float *x, uint8_t *q)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < MOE_Q8_BLOCK; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
    }
    float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    inverse = isinf(inverse) ? 0.0f : inverse;
    for (uint32_t i = 0; i < MOE_Q8_BLOCK; i++) {
        const float shifted = x[i] * inverse + 0x1.8p23f; /* rounds; the low byte is the integer */
        memcpy(&q[i], &shifted, 1);
    }
    return amax;
}

/* The greatest elements, whose q is 127 or -127, become amax or -amax. So the receiver's quantiser
 * finds the same amax, and the same scale. The other elements become q steps of that scale, which
 * the quantiser rounds to q again. If 1 / amax overflows, all q are 0, and one element carries
 * amax. */
static void unpack_block(const uint8_t *q, float amax, float *x)
{
    const float d = amax / 127.0f;
    bool any = false;
    for (uint32_t i = 0; i < MOE_Q8_BLOCK; i++) {
        const int8_t value = (int8_t)q[i];
        const bool is_greatest = value == 127 || value == -127;
        x[i] = is_greatest ? copysignf(amax, value) : d * value;
        any = any || is_greatest;
    }
    x[0] = any ? x[0] : amax;
}

void moe_rows_pack(moe_rows_form form, const float *x, uint32_t row, uint32_t n_rows, uint32_t n_in,
                   uint8_t *to)
{
    const uint32_t n_blocks = n_in / MOE_Q8_BLOCK;
    if (form == MOE_ROWS_FLOAT) {
        memcpy(to + (size_t)row * n_in * sizeof *x, x, n_in * sizeof *x);
        return;
    }
    uint8_t *q = to + (size_t)row * n_in;
    uint8_t *scales = to + (size_t)n_rows * n_in + (size_t)row * n_blocks * sizeof(float);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const float amax = pack_block(x + b * MOE_Q8_BLOCK, q + b * MOE_Q8_BLOCK);
        memcpy(scales + b * sizeof amax, &amax, sizeof amax);
    }
}

void moe_rows_unpack(moe_rows_form form, const uint8_t *from, uint32_t n_rows, uint32_t n_in,
                     float *x)
{
    const size_t n = (size_t)n_rows * n_in;
    if (form == MOE_ROWS_FLOAT) {
        memcpy(x, from, n * sizeof *x);
        return;
    }
    for (size_t b = 0; b < n / MOE_Q8_BLOCK; b++) {
        float amax;
        memcpy(&amax, from + n + b * sizeof amax, sizeof amax);
        unpack_block(from + b * MOE_Q8_BLOCK, amax, x + b * MOE_Q8_BLOCK);
    }
}
