/* SPDX-License-Identifier: MIT */
/* Converts rows of the KV cache: float32 to the cache's type and back. */
#include "cpu/kernels/kv_half.h"
#include "cpu/kernels/vector_reference.h"

#include <math.h>

size_t moe_kv_row_bytes(moe_kv_type type, uint32_t n)
{
    switch (type) {
    case MOE_KV_F32:
        return (size_t)n * sizeof(float);
    case MOE_KV_Q8_0:
        return (size_t)(n / MOE_KV_Q8_BLOCK) * MOE_KV_Q8_BYTES;
    case MOE_KV_Q4_0:
        return (size_t)(n / MOE_KV_Q8_BLOCK) * MOE_KV_Q4_BYTES;
    case MOE_KV_F8:
        return n;
    default:
        return (size_t)n * sizeof(uint16_t);
    }
}

static void store_f16_c(const float *x, uint8_t *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half = moe_float_to_half(x[i]);
        memcpy(row + 2 * (size_t)i, &half, sizeof(half));
    }
}

static void store_q4_block_c(const float *x, uint8_t *block)
{
    uint32_t top = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < MOE_KV_Q8_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu;
        at = bits > top ? i : at;
        top = bits > top ? bits : top;
    }
    uint16_t half = moe_float_to_half(x[at] / -8.0f);
    bool whole = (half & 0x7c00u) != 0x7c00u;
    half = whole ? half : MOE_KV_Q8_NAN;
    memcpy(block, &half, sizeof(half));
    memset(block + 2, 0, MOE_KV_Q8_BLOCK / 2);
    float d = moe_half_to_float(half);
    float id = d != 0.0f ? 1.0f / d : 0.0f;
    for (uint32_t i = 0; i < MOE_KV_Q8_BLOCK && whole; i++) {
        float q = rintf(x[i] * id) + 8.0f;
        q = q > 15.0f ? 15.0f : q;
        q = q < 0.0f ? 0.0f : q;
        block[2 + i % 16] |= (uint8_t)((uint32_t)q << (i / 16 * 4));
    }
}

static uint8_t float_to_f8(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t sign = bits >> 24 & 0x80u;
    uint32_t abs = bits & 0x7fffffffu;
    if (abs >= 0x7f800000u)
        return 0x7f;
    if (abs < 0x3c800000u) { /* below 2^-6: steps of 2^-9 */
        float magnitude;
        memcpy(&magnitude, &abs, sizeof(magnitude));
        return (uint8_t)(sign | (uint32_t)rintf(magnitude * 512.0f));
    }
    if (abs > 0x43e00000u)
        return (uint8_t)(sign | 0x7eu);
    abs += 0x7ffffu + (abs >> 20 & 1);
    return (uint8_t)(sign | ((abs >> 20) - (120u << 3)));
}

/* A half's exponent has bias 15 instead of 7, so the value is 2^8 times too small. */
static float f8_to_float(uint8_t code)
{
    uint32_t half = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
    half |= (code & 0x7fu) == 0x7fu ? 0x7c00u : 0;
    return moe_half_to_float((uint16_t)half) * 256.0f;
}

static void store_q8_block_c(const float *x, uint8_t *block)
{
    /* The bits of |x|, as integers, have the order of |x|, with infinity and then NaNs on top. So
     * one maximum finds both the scale and any value that cannot be scaled. */
    uint32_t top = 0;
    for (uint32_t i = 0; i < MOE_KV_Q8_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    float amax;
    memcpy(&amax, &top, sizeof(amax));
    uint16_t half = moe_float_to_half(amax / 127.0f);
    if ((half & 0x7c00u) == 0x7c00u) {
        half = MOE_KV_Q8_NAN;
        memcpy(block, &half, sizeof(half));
        memset(block + 2, 0, MOE_KV_Q8_BLOCK);
        return;
    }
    memcpy(block, &half, sizeof(half));
    float d = moe_half_to_float(half);
    float id = d > 0.0f ? 1.0f / d : 0.0f;
    for (uint32_t i = 0; i < MOE_KV_Q8_BLOCK; i++) {
        float q = rintf(x[i] * id);
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        block[2 + i] = (uint8_t)(int8_t)q;
    }
}

void moe_kv_store_c(moe_kv_type type, const float *x, void *row, uint32_t n)
{
    uint8_t *out = row;
    switch (type) {
    case MOE_KV_F16:
        store_f16_c(x, out, n);
        break;
    case MOE_KV_F32:
        memcpy(out, x, (size_t)n * sizeof(float));
        break;
    case MOE_KV_Q8_0:
        for (uint32_t b = 0; b < n / MOE_KV_Q8_BLOCK; b++)
            store_q8_block_c(x + (size_t)b * MOE_KV_Q8_BLOCK, out + (size_t)b * MOE_KV_Q8_BYTES);
        break;
    case MOE_KV_Q4_0:
        for (uint32_t b = 0; b < n / MOE_KV_Q8_BLOCK; b++)
            store_q4_block_c(x + (size_t)b * MOE_KV_Q8_BLOCK, out + (size_t)b * MOE_KV_Q4_BYTES);
        break;
    case MOE_KV_F8:
        for (uint32_t i = 0; i < n; i++)
            out[i] = float_to_f8(x[i]);
        break;
    }
}

static void load_f16_c(const uint8_t *row, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, row + 2 * (size_t)i, sizeof(half));
        x[i] = moe_half_to_float(half);
    }
}

static void load_q8_c(const uint8_t *row, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *block = row + (size_t)(i / MOE_KV_Q8_BLOCK) * MOE_KV_Q8_BYTES;
        uint16_t half;
        memcpy(&half, block, sizeof(half));
        x[i] = moe_half_to_float(half) * (float)(int8_t)block[2 + i % MOE_KV_Q8_BLOCK];
    }
}

static void load_q4_c(const uint8_t *row, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *block = row + (size_t)(i / MOE_KV_Q8_BLOCK) * MOE_KV_Q4_BYTES;
        uint32_t e = i % MOE_KV_Q8_BLOCK;
        uint16_t half;
        memcpy(&half, block, sizeof(half));
        int q = block[2 + e % 16] >> (e / 16 * 4) & 15;
        x[i] = moe_half_to_float(half) * (float)(q - 8);
    }
}

void moe_kv_load_c(moe_kv_type type, const void *row, float *x, uint32_t n)
{
    switch (type) {
    case MOE_KV_F16:
        load_f16_c(row, x, n);
        break;
    case MOE_KV_F32:
        memcpy(x, row, (size_t)n * sizeof(float));
        break;
    case MOE_KV_Q8_0:
        load_q8_c(row, x, n);
        break;
    case MOE_KV_Q4_0:
        load_q4_c(row, x, n);
        break;
    case MOE_KV_F8:
        for (uint32_t i = 0; i < n; i++)
            x[i] = f8_to_float(((const uint8_t *)row)[i]);
        break;
    }
}
