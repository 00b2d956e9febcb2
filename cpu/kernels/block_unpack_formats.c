/* SPDX-License-Identifier: MIT */
/* The definition of the block formats in plain C. The product of a block's scale and a sub-block's
 * scale is rounded once, before it is multiplied with a code, as the contract of matmul.h demands.
 */
#include "cpu/kernels/block_unpack.h"

#include "cpu/kernels/block_unpack_iq.h"

#include <stddef.h>

/* Checks the layout against the file's: no padding, and every field where GGUF has it. */
#define BLOCK_IS(type, bytes)                                                                      \
    _Static_assert(sizeof(type) == (bytes) && _Alignof(type) <= 2, "the block of a file")
#define FIELD_AT(type, field, at) _Static_assert(offsetof(type, field) == (at), "as in a file")
BLOCK_IS(moe_block_q4_0, 18);
BLOCK_IS(moe_block_q4_1, 20);
BLOCK_IS(moe_block_q5_0, 22);
BLOCK_IS(moe_block_q5_1, 24);
BLOCK_IS(moe_block_q8_0, 34);
BLOCK_IS(moe_block_mxfp4, 17);
BLOCK_IS(moe_block_q2_k, 84);
BLOCK_IS(moe_block_q3_k, 110);
BLOCK_IS(moe_block_q4_k, 144);
BLOCK_IS(moe_block_q5_k, 176);
BLOCK_IS(moe_block_q6_k, 210);
BLOCK_IS(moe_block_iq4_xs, 136);
FIELD_AT(moe_block_q4_0, qs, 2);
FIELD_AT(moe_block_q4_1, qs, 4);
FIELD_AT(moe_block_q5_0, qh, 2);
FIELD_AT(moe_block_q5_0, qs, 6);
FIELD_AT(moe_block_q5_1, qs, 8);
FIELD_AT(moe_block_q8_0, qs, 2);
FIELD_AT(moe_block_mxfp4, qs, 1);
FIELD_AT(moe_block_q2_k, qs, 16);
FIELD_AT(moe_block_q2_k, dmin, 82);
FIELD_AT(moe_block_q3_k, scales, 96);
FIELD_AT(moe_block_q3_k, d, 108);
FIELD_AT(moe_block_q4_k, scales, 4);
FIELD_AT(moe_block_q4_k, qs, 16);
FIELD_AT(moe_block_q5_k, qh, 16);
FIELD_AT(moe_block_q5_k, qs, 48);
FIELD_AT(moe_block_q6_k, qh, 128);
FIELD_AT(moe_block_q6_k, scales, 192);
FIELD_AT(moe_block_q6_k, d, 208);
FIELD_AT(moe_block_iq4_xs, scales_l, 4);
FIELD_AT(moe_block_iq4_xs, qs, 8);
BLOCK_IS(moe_block_iq2_xxs, 66);
BLOCK_IS(moe_block_iq2_xs, 74);
BLOCK_IS(moe_block_iq2_s, 82);
BLOCK_IS(moe_block_iq3_xxs, 98);
BLOCK_IS(moe_block_iq3_s, 110);
BLOCK_IS(moe_block_iq1_s, 50);
BLOCK_IS(moe_block_iq1_m, 56);
BLOCK_IS(moe_block_tq1_0, 54);
BLOCK_IS(moe_block_tq2_0, 66);
BLOCK_IS(moe_block_nvfp4, 36);
FIELD_AT(moe_block_iq2_xxs, part, 2);
FIELD_AT(moe_block_iq2_xs, scales, 66);
FIELD_AT(moe_block_iq2_s, signs, 34);
FIELD_AT(moe_block_iq2_s, qh, 66);
FIELD_AT(moe_block_iq2_s, scales, 74);
FIELD_AT(moe_block_iq3_xxs, signs, 66);
FIELD_AT(moe_block_iq3_s, qh, 66);
FIELD_AT(moe_block_iq3_s, signs, 74);
FIELD_AT(moe_block_iq3_s, scales, 106);
FIELD_AT(moe_block_iq1_s, qh, 34);
FIELD_AT(moe_block_iq1_m, qh, 32);
FIELD_AT(moe_block_iq1_m, scales, 48);
FIELD_AT(moe_block_tq1_0, qh, 48);
FIELD_AT(moe_block_tq1_0, d, 52);
FIELD_AT(moe_block_tq2_0, d, 64);
FIELD_AT(moe_block_nvfp4, qs, 4);

static const int8_t iq4_codes[16] = {MOE_IQ4_CODES};
static const int8_t mxfp4_codes[16] = {MOE_MXFP4_CODES};

static void set_scale(moe_unpacked *out, uint32_t block, float scale)
{
    out->scale[2 * block] = scale;
    out->scale[2 * block + 1] = scale;
}

static void split_nibbles(const uint8_t *qs, int8_t *code, int offset)
{
    for (int j = 0; j < 16; j++) {
        code[j] = (int8_t)((qs[j] & 15) - offset);
        code[j + 16] = (int8_t)((qs[j] >> 4) - offset);
    }
}

static void look_up_nibbles(const uint8_t *qs, int8_t *code, const int8_t *codebook)
{
    for (int j = 0; j < 16; j++) {
        code[j] = codebook[qs[j] & 15];
        code[j + 16] = codebook[qs[j] >> 4];
    }
}

static void add_fifth_bits(const uint8_t *qh, int8_t *code)
{
    for (int j = 0; j < 32; j++) {
        code[j] = (int8_t)(code[j] + (qh[j / 8] >> j % 8 & 1) * 16);
    }
}

static void unpack_q4_0(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q4_0 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        split_nibbles(block[b].qs, out->code + 32 * b, 8);
        set_scale(out, b, moe_half_to_float(block[b].d));
    }
}

static void unpack_q4_1(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q4_1 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        split_nibbles(block[b].qs, out->code + 32 * b, 0);
        set_scale(out, b, moe_half_to_float(block[b].d));
        out->min[b] = moe_half_to_float(block[b].m);
    }
}

static void unpack_q5_0(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q5_0 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        split_nibbles(block[b].qs, out->code + 32 * b, 16);
        add_fifth_bits(block[b].qh, out->code + 32 * b);
        set_scale(out, b, moe_half_to_float(block[b].d));
    }
}

static void unpack_q5_1(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q5_1 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        split_nibbles(block[b].qs, out->code + 32 * b, 0);
        add_fifth_bits(block[b].qh, out->code + 32 * b);
        set_scale(out, b, moe_half_to_float(block[b].d));
        out->min[b] = moe_half_to_float(block[b].m);
    }
}

static void unpack_q8_0(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q8_0 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        memcpy(out->code + 32 * b, block[b].qs, 32);
        set_scale(out, b, moe_half_to_float(block[b].d));
    }
}

static void unpack_iq4_nl(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_q4_0 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        look_up_nibbles(block[b].qs, out->code + 32 * b, iq4_codes);
        set_scale(out, b, moe_half_to_float(block[b].d));
    }
}

static void unpack_mxfp4(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_mxfp4 *block = blocks;
    for (uint32_t b = 0; b < n / 32; b++) {
        look_up_nibbles(block[b].qs, out->code + 32 * b, mxfp4_codes);
        set_scale(out, b, moe_float_of_bits(moe_e8m0_half_bits(block[b].e)));
    }
}

static int bit_pair(const uint8_t *qs, uint32_t i)
{
    return qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
}

static void unpack_q2_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_q2_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        out->code[i] = (int8_t)bit_pair(block->qs, i);
    }
    const float d = moe_half_to_float(block->d);
    const float dmin = moe_half_to_float(block->dmin);
    for (int j = 0; j < 16; j++) {
        out->scale[j] = d * (float)(block->scales[j] & 15);
        out->min[j] = -(dmin * (float)(block->scales[j] >> 4));
    }
}

static void unpack_q3_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_q3_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int third_bit = block->hmask[i % 32] >> i / 32 & 1;
        out->code[i] = (int8_t)(bit_pair(block->qs, i) + 4 * third_bit - 4);
    }
    const float d = moe_half_to_float(block->d);
    for (int j = 0; j < 16; j++) {
        const int low = block->scales[j % 8] >> 4 * (j / 8) & 15;
        const int high = block->scales[8 + j % 4] >> 2 * (j / 4) & 3;
        out->scale[j] = d * (float)((low | high << 4) - 32);
    }
}

/* Unpacks 6-bit scales and minima, which Q4_K and Q5_K store in the same way. The first four of
 * each are the low bits of bytes 0..7. The last four have their lower four bits as nibbles in bytes
 * 8..11, and their upper two bits on top of bytes 0..7. */
static void unpack_scales_k(const uint8_t *packed, float d, float dmin, moe_unpacked *out)
{
    for (uint32_t j = 0; j < 8; j++) {
        int scale = packed[j] & 63;
        int min = packed[(j + 4) % 8] & 63;
        if (j >= 4) {
            scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
            min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
        }
        set_scale(out, j, d * (float)scale);
        out->min[j] = -(dmin * (float)min);
    }
}

static void unpack_q4_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_q4_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        out->code[i] = (int8_t)(block->qs[32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15);
    }
    unpack_scales_k(block->scales, moe_half_to_float(block->d), moe_half_to_float(block->dmin),
                    out);
}

static void unpack_q5_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_q5_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int nibble = block->qs[32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15;
        const int fifth_bit = block->qh[i % 32] >> i / 32 & 1;
        out->code[i] = (int8_t)(nibble + 16 * fifth_bit);
    }
    unpack_scales_k(block->scales, moe_half_to_float(block->d), moe_half_to_float(block->dmin),
                    out);
}

static void unpack_q6_k(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_q6_k *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int nibble = block->ql[64 * (i / 128) + i % 64] >> 4 * (i / 64 % 2) & 15;
        out->code[i] = (int8_t)((nibble | bit_pair(block->qh, i) << 4) - 32);
    }
    const float d = moe_half_to_float(block->d);
    for (int j = 0; j < 16; j++) {
        out->scale[j] = d * (float)block->scales[j];
    }
}

static void unpack_iq4_xs(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq4_xs *block = blocks;
    const float d = moe_half_to_float(block->d);
    for (uint32_t b = 0; b < 8; b++) {
        look_up_nibbles(block->qs + 16 * b, out->code + 32 * b, iq4_codes);
        const int low = block->scales_l[b / 2] >> 4 * (b % 2) & 15;
        const int high = block->scales_h >> 2 * b & 3;
        set_scale(out, b, d * (float)((low | high << 4) - 32));
    }
}

static const moe_block_format formats[MOE_DTYPE_LIMIT] = {
    [MOE_DTYPE_Q4_0] = {unpack_q4_0, 32, false},
    [MOE_DTYPE_Q4_1] = {unpack_q4_1, 32, true},
    [MOE_DTYPE_Q5_0] = {unpack_q5_0, 32, false},
    [MOE_DTYPE_Q5_1] = {unpack_q5_1, 32, true},
    [MOE_DTYPE_Q8_0] = {unpack_q8_0, 32, false},
    [MOE_DTYPE_Q2_K] = {unpack_q2_k, 16, true},
    [MOE_DTYPE_Q3_K] = {unpack_q3_k, 16, false},
    [MOE_DTYPE_Q4_K] = {unpack_q4_k, 32, true},
    [MOE_DTYPE_Q5_K] = {unpack_q5_k, 32, true},
    [MOE_DTYPE_Q6_K] = {unpack_q6_k, 16, false},
    [MOE_DTYPE_IQ4_NL] = {unpack_iq4_nl, 32, false},
    [MOE_DTYPE_IQ4_XS] = {unpack_iq4_xs, 32, false},
    [MOE_DTYPE_IQ2_XXS] = {moe_unpack_iq2_xxs, 32, false},
    [MOE_DTYPE_IQ2_XS] = {moe_unpack_iq2_xs, 16, false},
    [MOE_DTYPE_IQ2_S] = {moe_unpack_iq2_s, 16, false},
    [MOE_DTYPE_IQ3_XXS] = {moe_unpack_iq3_xxs, 32, false},
    [MOE_DTYPE_IQ3_S] = {moe_unpack_iq3_s, 32, false},
    [MOE_DTYPE_IQ1_S] = {moe_unpack_iq1_s, 32, false},
    [MOE_DTYPE_IQ1_M] = {moe_unpack_iq1_m, 16, false},
    [MOE_DTYPE_TQ1_0] = {moe_unpack_tq1_0, 32, false},
    [MOE_DTYPE_TQ2_0] = {moe_unpack_tq2_0, 32, false},
    [MOE_DTYPE_MXFP4] = {unpack_mxfp4, 32, false},
    [MOE_DTYPE_NVFP4] = {moe_unpack_nvfp4, 16, false},
    [MOE_DTYPE_IQ2_K] = {moe_unpack_iq2_k, 16, false},
    [MOE_DTYPE_IQ3_K] = {moe_unpack_iq3_k, 16, false},
    [MOE_DTYPE_IQ4_K] = {moe_unpack_iq4_k, 16, false},
    [MOE_DTYPE_IQ5_K] = {moe_unpack_iq5_k, 16, false},
    [MOE_DTYPE_IQ6_K] = {moe_unpack_iq6_k, 16, false},
    [MOE_DTYPE_IQ2_KS] = {moe_unpack_iq2_ks, 32, false},
    [MOE_DTYPE_IQ3_KS] = {moe_unpack_iq3_ks, 32, false},
    [MOE_DTYPE_IQ4_KS] = {moe_unpack_iq4_ks, 32, false},
    [MOE_DTYPE_IQ4_KSS] = {moe_unpack_iq4_kss, 32, false},
    [MOE_DTYPE_IQ5_KS] = {moe_unpack_iq5_ks, 32, false},
};

const moe_block_format *moe_block_format_of(moe_dtype type)
{
    return (unsigned)type < MOE_DTYPE_LIMIT && formats[type].unpack != NULL ? &formats[type] : NULL;
}

float moe_row_scale(moe_dtype type, const void *row)
{
    uint16_t half;
    float scale = 1;
    switch (moe_dtype_info_of(type)->head_bytes) {
    case sizeof half:
        memcpy(&half, row, sizeof half);
        return moe_half_to_float(half);
    case sizeof scale:
        memcpy(&scale, row, sizeof scale);
        return scale;
    default:
        return scale;
    }
}
