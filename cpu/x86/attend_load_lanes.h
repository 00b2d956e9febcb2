/* SPDX-License-Identifier: MIT */
/* Loads keys and values for attend_lanes.h, which includes this after lanes16_*.h.
 *
 * The scales of Q8_0 and Q4_0 are loaded for SCALES blocks at once, so that a block's scale is then
 * one broadcast from memory. F8 values are loaded divided by 256, without a check for NaNs;
 * f8_nans() tells afterwards whether there was a NaN. */
#ifndef MOE_X86_ATTEND_LOAD_LANES_H
#define MOE_X86_ATTEND_LOAD_LANES_H

#include "cpu/kernels/vector_ops.h"
#include "cpu/x86/always_inline.h"

#define BLOCK  32 /* elements: two chunks of 16, and a block of Q8_0 */
#define SCALES 4  /* blocks */

#define F8_UNIT 256.0f

MOE_INLINE bool has_scales(moe_kv_type type)
{
    return type == MOE_KV_Q8_0 || type == MOE_KV_Q4_0;
}

/* The scales of blocks b .. b + n - 1 of a row, n <= SCALES. */
MOE_INLINE void load_scales(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t n,
                            float scales[SCALES])
{
    const size_t block = type == MOE_KV_Q8_0 ? MOE_KV_Q8_BYTES : MOE_KV_Q4_BYTES;
    uint64_t halves = 0;
    row += b * block;
    UNROLL
    for (uint32_t i = 0; i < SCALES; i++) {
        uint16_t half = 0;
        if (i < n)
            memcpy(&half, row + i * block, sizeof(half));
        halves |= (uint64_t)half << 16 * i;
    }
    __m128 four = _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)halves));
    if (type == MOE_KV_Q4_0)
        four = _mm_mul_ps(four, _mm_set1_ps(L16_Q4_UNIT));
    _mm_storeu_ps(scales, four);
}

/* Loads chunk `half` (0 or 1) of block b of a row. */
MOE_INLINE l16 load_chunk(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t half)
{
    if (type == MOE_KV_F16)
        return l16_load_half(row + (size_t)b * 64 + half * 32);
    if (type == MOE_KV_F32)
        return l16_load((const void *)(row + (size_t)b * 128 + half * 64));
    if (type == MOE_KV_F8) {
        l16 both[2];
        l16_load_f8_block(row + (size_t)b * BLOCK, both);
        return both[half];
    }
    if (type == MOE_KV_Q4_0) {
        const uint8_t *q4 = row + (size_t)b * MOE_KV_Q4_BYTES;
        return l16_mul(l16_set_half(q4), l16_load_q4(q4 + 2, half));
    }
    const uint8_t *block = row + (size_t)b * MOE_KV_Q8_BYTES;
    return l16_mul(l16_set_half(block), l16_load_int8(block + 2 + half * 16));
}

/* Loads both chunks of block b of a row. scale: the block's, from load_scales(); NULL: loads it
 * here, which is faster for a single row. */
MOE_INLINE void load_block(moe_kv_type type, const uint8_t *row, uint32_t b, const float *scale,
                           l16 out[2])
{
    if (type == MOE_KV_F8) {
        l16_load_f8_block(row + (size_t)b * BLOCK, out);
    } else if (scale == NULL || !has_scales(type)) {
        out[0] = load_chunk(type, row, b, 0);
        out[1] = load_chunk(type, row, b, 1);
    } else if (type == MOE_KV_Q4_0) {
        l16_load_q4_block(row + (size_t)b * MOE_KV_Q4_BYTES + 2, scale, out);
    } else {
        const uint8_t *codes = row + (size_t)b * MOE_KV_Q8_BYTES + 2;
        out[0] = l16_mul(l16_set(*scale), l16_load_int8(codes));
        out[1] = l16_mul(l16_set(*scale), l16_load_int8(codes + 16));
    }
}

/* Loads the elements behind a row's last whole block, n < 32 of them, as two chunks padded with
 * zeros. Q8_0 and Q4_0 have no such elements. */
static void load_rest(moe_kv_type type, const uint8_t *row, uint32_t b, uint32_t n, l16 rest[2])
{
    const uint32_t low = n < 16 ? n : 16;
    if (type == MOE_KV_F32) {
        const float *x = (const void *)(row + (size_t)b * BLOCK * sizeof(float));
        rest[0] = l16_load_part(x, low);
        rest[1] = n > 16 ? l16_load_part(x + 16, n - 16) : l16_zero();
    } else if (type == MOE_KV_F16) {
        const uint8_t *x = row + (size_t)b * BLOCK * sizeof(uint16_t);
        rest[0] = l16_load_half_part(x, low);
        rest[1] = n > 16 ? l16_load_half_part(x + 32, n - 16) : l16_zero();
    } else {
        uint8_t bytes[BLOCK] = {0};
        memcpy(bytes, row + (size_t)b * BLOCK, n);
        rest[0] = load_chunk(MOE_KV_F8, bytes, 0, 0);
        rest[1] = load_chunk(MOE_KV_F8, bytes, 0, 1);
    }
}

/* Whether rows of F8 hold a NaN: a code whose seven lower bits are all set. */
static bool f8_nans(const uint8_t *const *rows, uint32_t n_rows, uint32_t n)
{
    l16_bytes top = l16_bytes_zero();
    for (uint32_t j = 0; j < n_rows; j++) {
        uint32_t i = 0;
        for (; i + L16_BYTES <= n; i += L16_BYTES)
            top = l16_bytes_top(top, rows[j] + i);
        if (i < n) {
            uint8_t rest[L16_BYTES] = {0};
            memcpy(rest, rows[j] + i, n - i);
            top = l16_bytes_top(top, rest);
        }
    }
    return l16_bytes_any_full(top);
}

/* Whether F8_UNIT times an element is infinite, or may be. */
static bool f8_query_overflows(const float *q, size_t n)
{
    l16 greatest = l16_zero();
    for (; n >= 16; n -= 16, q += 16)
        greatest = l16_max(l16_abs(l16_load(q)), greatest);
    if (n > 0)
        greatest = l16_max(l16_abs(l16_load_part(q, (uint32_t)n)), greatest);
    return l16_reduce_max(greatest) >= 0x1p120f;
}

#endif
