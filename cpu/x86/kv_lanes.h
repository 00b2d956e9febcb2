/* SPDX-License-Identifier: MIT */
/* Converts rows of the KV cache to and from their types on the sixteen lanes of lanes16_*.h, which
 * is included first; the bytes are those of kv_convert.c. Part of the body of vector_lanes.h. */
#ifndef MOE_X86_KV_LANES_H
#define MOE_X86_KV_LANES_H

#include "cpu/kernels/kv_half.h"
#include "cpu/kernels/vector_ops.h"
#include "cpu/kernels/vector_reference.h"

static void store_q8_block(const float *x, uint8_t *block)
{
    uint32_t top = l16_max_abs_bits(x);
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
    l16 id = l16_set(d > 0.0f ? 1.0f / d : 0.0f);
    l16_store_int8(block + 2, l16_mul(l16_load(x), id));
    l16_store_int8(block + 18, l16_mul(l16_load(x + 16), id));
}

static void store_f16(const float *x, uint8_t *row, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store_half(row + 2 * (size_t)i, l16_load(x + i));
    if (rest > 0) {
        uint8_t part[32];
        l16_store_half(part, l16_load_part(x + whole, rest));
        memcpy(row + 2 * (size_t)whole, part, 2 * (size_t)rest);
    }
}

/* Finds the first of 32 numbers whose magnitude has the bits `top`. */
static uint32_t find_magnitude(const float *x, uint32_t top)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const __m256i wanted = _mm256_set1_epi32((int32_t)top);
    for (uint32_t i = 0; i < MOE_KV_Q8_BLOCK; i += 8) {
        __m256i bits = _mm256_and_si256(_mm256_loadu_si256((const void *)(x + i)), magnitude);
        __m256 equal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, wanted));
        uint32_t found = (uint32_t)_mm256_movemask_ps(equal);
        if (found != 0)
            return i + (uint32_t)__builtin_ctz(found);
    }
    return 0;
}

/* Converts eight floats to codes from 0 to 15. */
static __m256i q4_codes(const float *x, __m256 id)
{
    __m256 q = _mm256_mul_ps(_mm256_loadu_ps(x), id);
    q = _mm256_round_ps(q, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    q = _mm256_min_ps(_mm256_set1_ps(15.0f), _mm256_add_ps(q, _mm256_set1_ps(8.0f)));
    return _mm256_cvttps_epi32(_mm256_max_ps(_mm256_setzero_ps(), q));
}

/* Stores eight integers below 256 as bytes. */
static void store_bytes(uint8_t *to, __m256i v)
{
    __m128i pairs = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((void *)to, _mm_packus_epi16(pairs, pairs));
}

static void store_q4_block(const float *x, uint8_t *block)
{
    uint32_t at = find_magnitude(x, l16_max_abs_bits(x));
    uint16_t half = moe_float_to_half(x[at] / -8.0f);
    if ((half & 0x7c00u) == 0x7c00u) {
        half = MOE_KV_Q8_NAN;
        memcpy(block, &half, sizeof(half));
        memset(block + 2, 0, MOE_KV_Q8_BLOCK / 2);
        return;
    }
    memcpy(block, &half, sizeof(half));
    float d = moe_half_to_float(half);
    __m256 id = _mm256_set1_ps(d != 0.0f ? 1.0f / d : 0.0f);
    for (uint32_t i = 0; i < 16; i += 8) {
        __m256i high = _mm256_slli_epi32(q4_codes(x + 16 + i, id), 4);
        store_bytes(block + 2 + i, _mm256_or_si256(q4_codes(x + i, id), high));
    }
}

/* Converts eight floats to codes, by the cases of float_to_f8() in kv_convert.c. */
static __m256i f8_codes(__m256i bits)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i abs = _mm256_and_si256(bits, magnitude);
    __m256i sign = _mm256_srli_epi32(_mm256_andnot_si256(magnitude, bits), 24);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(abs, 20), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(abs, _mm256_set1_epi32(0x7ffff)), odd);
    __m256i code = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    __m256 steps = _mm256_mul_ps(_mm256_castsi256_ps(abs), _mm256_set1_ps(512.0f));
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), abs);
    code = _mm256_blendv_epi8(code, _mm256_cvtps_epi32(steps), small);
    __m256i large = _mm256_cmpgt_epi32(abs, _mm256_set1_epi32(0x43e00000));
    code = _mm256_or_si256(_mm256_blendv_epi8(code, _mm256_set1_epi32(0x7e), large), sign);
    __m256i none = _mm256_cmpgt_epi32(abs, _mm256_set1_epi32(0x7f7fffff));
    return _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), none);
}

static void store_f8(const float *x, uint8_t *row, uint32_t n)
{
    uint32_t whole = n & ~7u;
    for (uint32_t i = 0; i < whole; i += 8)
        store_bytes(row + i, f8_codes(_mm256_loadu_si256((const void *)(x + i))));
    moe_kv_store_c(MOE_KV_F8, x + whole, row + whole, n - whole);
}

static void kv_store_lanes(moe_kv_type type, const float *x, void *row, uint32_t n)
{
    uint8_t *out = row;
    switch (type) {
    case MOE_KV_F16:
        store_f16(x, out, n);
        break;
    case MOE_KV_F32:
        memcpy(out, x, (size_t)n * sizeof(float));
        break;
    case MOE_KV_Q8_0:
        for (uint32_t b = 0; b < n / MOE_KV_Q8_BLOCK; b++)
            store_q8_block(x + (size_t)b * MOE_KV_Q8_BLOCK, out + (size_t)b * MOE_KV_Q8_BYTES);
        break;
    case MOE_KV_Q4_0:
        for (uint32_t b = 0; b < n / MOE_KV_Q8_BLOCK; b++)
            store_q4_block(x + (size_t)b * MOE_KV_Q8_BLOCK, out + (size_t)b * MOE_KV_Q4_BYTES);
        break;
    case MOE_KV_F8:
        store_f8(x, out, n);
        break;
    }
}

static void load_f16(const uint8_t *row, float *x, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, l16_load_half(row + 2 * (size_t)i));
    if (rest > 0) {
        uint8_t part[32] = {0};
        memcpy(part, row + 2 * (size_t)whole, 2 * (size_t)rest);
        l16_store_part(x + whole, l16_load_half(part), rest);
    }
}

static void load_q8_block(const uint8_t *block, float *x)
{
    l16 d = l16_set_half(block);
    l16_store(x, l16_mul(d, l16_load_int8(block + 2)));
    l16_store(x + 16, l16_mul(d, l16_load_int8(block + 18)));
}

static void load_q4_block(const uint8_t *block, float *x)
{
    l16 d = l16_set_half(block);
    l16_store(x, l16_mul(d, l16_load_q4(block + 2, 0)));
    l16_store(x + 16, l16_mul(d, l16_load_q4(block + 2, 1)));
}

static void load_f8(const uint8_t *row, float *x, uint32_t n)
{
    uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, l16_load_f8(row + i));
    moe_kv_load_c(MOE_KV_F8, row + whole, x + whole, n - whole);
}

static void kv_load_lanes(moe_kv_type type, const void *row, float *x, uint32_t n)
{
    const uint8_t *in = row;
    switch (type) {
    case MOE_KV_F16:
        load_f16(in, x, n);
        break;
    case MOE_KV_F32:
        memcpy(x, in, (size_t)n * sizeof(float));
        break;
    case MOE_KV_Q8_0:
        for (uint32_t b = 0; b < n / MOE_KV_Q8_BLOCK; b++)
            load_q8_block(in + (size_t)b * MOE_KV_Q8_BYTES, x + (size_t)b * MOE_KV_Q8_BLOCK);
        break;
    case MOE_KV_Q4_0:
        for (uint32_t b = 0; b < n / MOE_KV_Q8_BLOCK; b++)
            load_q4_block(in + (size_t)b * MOE_KV_Q4_BYTES, x + (size_t)b * MOE_KV_Q8_BLOCK);
        break;
    case MOE_KV_F8:
        load_f8(in, x, n);
        break;
    }
}

#endif
