/* SPDX-License-Identifier: MIT */
/* The definition, in plain C, of the types in which one bit of each run (the 16 or 32 elements that
 * share a scale) shifts the run's codes. */
#include "cpu/kernels/block_unpack_iq.h"

#include <stddef.h>

#define BLOCK_IS(type, bytes)                                                                      \
    _Static_assert(sizeof(type) == (bytes) && _Alignof(type) <= 2, "the block of a file")
#define FIELD_AT(type, field, at) _Static_assert(offsetof(type, field) == (at), "as in a file")
BLOCK_IS(moe_block_iq2_k, 76);
BLOCK_IS(moe_block_iq3_k, 110);
BLOCK_IS(moe_block_iq4_k, 144);
BLOCK_IS(moe_block_iq5_k, 176);
BLOCK_IS(moe_block_iq6_k, 212);
BLOCK_IS(moe_block_iq2_ks, 70);
BLOCK_IS(moe_block_iq3_ks, 102);
BLOCK_IS(moe_block_iq4_ks, 136);
BLOCK_IS(moe_block_iq5_ks, 168);
BLOCK_IS(moe_block_iq4_kss, 128);
FIELD_AT(moe_block_iq2_k, qs, 12);
FIELD_AT(moe_block_iq3_k, qs, 14);
FIELD_AT(moe_block_iq3_k, qh, 78);
FIELD_AT(moe_block_iq4_k, scales_l, 8);
FIELD_AT(moe_block_iq4_k, qs, 16);
FIELD_AT(moe_block_iq5_k, qh, 144);
FIELD_AT(moe_block_iq6_k, qs, 20);
FIELD_AT(moe_block_iq6_k, qh, 148);
FIELD_AT(moe_block_iq2_ks, qs, 6);
FIELD_AT(moe_block_iq3_ks, qh, 70);
FIELD_AT(moe_block_iq5_ks, qh, 136);

static const int8_t iq2_codes[4] = {MOE_IQ2_CODES};
static const int8_t iq3_codes[8] = {MOE_IQ3_CODES};
static const int8_t iq4_codes[16] = {MOE_IQ4_CODES};
static const int8_t iq5_codes[32] = {MOE_IQ5_CODES};
static const int8_t iq6_codes[64] = {MOE_IQ6_CODES};

static void set_scale(moe_unpacked *out, uint32_t block, int scale)
{
    out->scale[2 * block] = (float)scale;
    out->scale[2 * block + 1] = (float)scale;
}

/* The next functions read the field of element i: two bits, one bit, or a nibble. */

static int bit_pair(const uint8_t *qs, uint32_t i)
{
    return qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
}

static int plane_bit(const uint8_t *qh, uint32_t i)
{
    return qh[i % 32] >> i / 32 & 1;
}

static int nibble_of_32(const uint8_t *qs, uint32_t i)
{
    return qs[16 * (i / 32) + i % 16] >> 4 * (i / 16 % 2) & 15;
}

static int nibble_of_64(const uint8_t *qs, uint32_t i)
{
    return qs[32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15;
}

static int nibble_at(const uint8_t *bytes, uint32_t j)
{
    return bytes[j / 2] >> 4 * (j % 2) & 15;
}

static int8_t shifted(int code, unsigned shifts, uint32_t run, int by)
{
    return (int8_t)(code + ((shifts >> run & 1) != 0 ? by : 0));
}

void moe_unpack_iq2_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq2_k *block = blocks;
    const float d = moe_half_to_float(block->d);
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq2_codes[bit_pair(block->qs, i)];
        out->code[i] = shifted(code, block->shifts, i / 16, MOE_IQ2_SHIFT);
    }
    for (uint32_t j = 0; j < 16; j++) {
        out->scale[j] = d * (float)(nibble_at(block->scales, j) - 8);
    }
}

void moe_unpack_iq3_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq3_k *block = blocks;
    const float d = moe_half_to_float(block->d);
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq3_codes[bit_pair(block->qs, i) + 4 * plane_bit(block->qh, i)];
        out->code[i] = shifted(code, block->shifts, i / 16, MOE_IQ4_SHIFT);
    }
    for (uint32_t j = 0; j < 16; j++) {
        const int scale = 2 * nibble_at(block->scales, j) + 1;
        out->scale[j] = d * (float)((block->signs >> j & 1) != 0 ? -scale : scale);
    }
}

/* Unpacks the scales of IQ4_K and IQ5_K, which have the same layout. */
static void unpack_scales_of_six_bits(const moe_block_iq4_k *block, moe_unpacked *out)
{
    const float d = moe_half_to_float(block->d);
    for (uint32_t j = 0; j < 16; j++) {
        const int high = block->scales_h[j / 4] >> 2 * (j % 4) & 3;
        out->scale[j] = d * (float)((nibble_at(block->scales_l, j) | high << 4) - 32);
    }
}

void moe_unpack_iq4_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq4_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq4_codes[nibble_of_32(block->qs, i)];
        out->code[i] = shifted(code, block->shifts, i / 16, MOE_IQ4_SHIFT);
    }
    unpack_scales_of_six_bits(block, out);
}

void moe_unpack_iq5_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq5_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq5_codes[nibble_of_64(block->qs, i) + 16 * plane_bit(block->qh, i)];
        out->code[i] = shifted(code, block->shifts, i / 16, MOE_IQ5_SHIFT);
    }
    unpack_scales_of_six_bits((const moe_block_iq4_k *)blocks, out);
}

void moe_unpack_iq6_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq6_k *block = blocks;
    const float d = moe_half_to_float(block->d);
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq6_codes[nibble_of_64(block->qs, i) + 16 * bit_pair(block->qh, i)];
        out->code[i] = shifted(code, block->shifts, i / 16, MOE_IQ6_SHIFT);
    }
    for (uint32_t j = 0; j < 16; j++) {
        out->scale[j] = d * (float)block->scales[j];
    }
}

void moe_unpack_iq2_ks(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq2_ks *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq2_codes[bit_pair(block->qs, i)];
        out->code[i] = shifted(code, block->shifts, i / 32, MOE_IQ2_SHIFT);
    }
    for (uint32_t b = 0; b < 8; b++) {
        const int fifth_bit = block->scales_h >> b & 1;
        set_scale(out, b, (nibble_at(block->scales, b) | fifth_bit << 4) - 16);
    }
}

void moe_unpack_iq3_ks(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq3_ks *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq3_codes[bit_pair(block->qs, i) + 4 * plane_bit(block->qh, i)];
        out->code[i] = shifted(code, block->shifts, i / 32, MOE_IQ4_SHIFT);
    }
    for (uint32_t b = 0; b < 8; b++) {
        const int nibble = block->scales[b % 4] >> 4 * (b / 4) & 15;
        const int fifth_bit = block->scales_h >> b & 1;
        set_scale(out, b, (nibble | fifth_bit << 4) - 16);
    }
}

/* Sets the scale from a byte that also holds the shift. */
static void set_odd_scale(moe_unpacked *out, uint32_t block, uint8_t byte)
{
    set_scale(out, block, (byte & 254) - 127);
}

void moe_unpack_iq4_ks(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq4_ks *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq4_codes[nibble_of_32(block->qs, i)];
        out->code[i] = shifted(code, block->scales[i / 32], 0, MOE_IQ4_SHIFT);
    }
    for (uint32_t b = 0; b < 8; b++) {
        set_odd_scale(out, b, block->scales[b]);
    }
}

void moe_unpack_iq5_ks(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq5_ks *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int code = iq5_codes[nibble_of_64(block->qs, i) + 16 * plane_bit(block->qh, i)];
        out->code[i] = shifted(code, block->scales[i / 32], 0, MOE_IQ5_SHIFT);
    }
    for (uint32_t b = 0; b < 8; b++) {
        set_odd_scale(out, b, block->scales[b]);
    }
}

void moe_unpack_iq4_kss(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq4_kss *block = blocks;
    for (uint32_t b = 0; b < 8; b++) {
        uint8_t qs[16];
        uint8_t scale = 0;
        for (uint32_t k = 0; k < 8; k++) {
            const unsigned word = block->qs[b][k];
            const unsigned codes = (word & 0xfffe) ^ (word & 0xfffe) >> 1;
            qs[2 * k] = (uint8_t)codes;
            qs[2 * k + 1] = (uint8_t)(codes >> 8);
            scale = (uint8_t)(scale | (word & 1) << k);
        }
        for (uint32_t i = 0; i < 32; i++) {
            const int code = iq4_codes[nibble_of_32(qs, i)];
            out->code[32 * b + i] = shifted(code, scale, 0, MOE_IQ4_SHIFT);
        }
        set_odd_scale(out, b, scale);
    }
}
