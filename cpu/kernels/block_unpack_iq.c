/* SPDX-License-Identifier: MIT */
/* Unpacks, in plain C, the types with codebooks: four or eight neighbouring elements of a row are
 * one entry of a codebook, a point, and the elements are its coordinates. This code defines the
 * types. Scales are exact: a block's scale d has 11 significant bits, and the factor by which it is
 * multiplied has at most 5, times a power of two. */
#include "cpu/kernels/block_unpack_iq.h"

#include "cpu/kernels/codebooks.h"

/* Sets n codes from a point's bytes, negative where a bit of signs is set. */
static void set_signed(int8_t *code, uint64_t bytes, uint32_t signs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const int magnitude = (int)(bytes >> 8 * i & 255);
        code[i] = (int8_t)((signs >> i & 1) != 0 ? -magnitude : magnitude);
    }
}

static uint32_t word_at(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Sets the scale of n runs of 16 from run j on to d times an odd number. */
static void set_scales(moe_unpacked *out, uint32_t j, uint32_t n, float d, uint32_t s)
{
    for (uint32_t i = 0; i < n; i++) {
        out->scale[j + i] = d * (float)(2 * s + 1);
    }
}

void moe_unpack_iq2_xxs(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq2_xxs *block = blocks;
    const float d = moe_half_to_float(block->d) * 0.125f;
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t word = word_at(block->part[b].signs);
        const uint32_t signs = moe_even_signs(word);
        for (uint32_t i = 0; i < 4; i++) {
            set_signed(out->code + 32 * b + 8 * i, moe_iq2_xxs_bytes[block->part[b].qs[i]],
                       signs >> 8 * i, 8);
        }
        set_scales(out, 2 * b, 2, d, word >> 28);
    }
}

void moe_unpack_iq2_xs(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq2_xs *block = blocks;
    const float d = moe_half_to_float(block->d) * 0.125f;
    for (uint32_t i = 0; i < 32; i++) {
        set_signed(out->code + 8 * i, moe_iq2_xs_bytes[block->qs[i] & 511],
                   moe_even_signs(block->qs[i] >> 9), 8);
    }
    for (uint32_t j = 0; j < 16; j++) {
        set_scales(out, j, 1, d, block->scales[j / 2] >> 4 * (j % 2) & 15);
    }
}

void moe_unpack_iq2_s(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq2_s *block = blocks;
    const float d = moe_half_to_float(block->d) * 0.125f;
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t upper = block->qh[i / 4] >> 2 * (i % 4) & 3;
        set_signed(out->code + 8 * i, moe_iq2_s_bytes[block->qs[i] | upper << 8], block->signs[i],
                   8);
    }
    for (uint32_t j = 0; j < 16; j++) {
        set_scales(out, j, 1, d, block->scales[j / 2] >> 4 * (j % 2) & 15);
    }
}

void moe_unpack_iq3_xxs(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq3_xxs *block = blocks;
    const float d = moe_half_to_float(block->d) * 0.25f;
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t word = word_at(block->signs[b]);
        const uint32_t signs = moe_even_signs(word);
        for (uint32_t i = 0; i < 8; i++) {
            set_signed(out->code + 32 * b + 4 * i, moe_iq3_xxs_bytes[block->qs[8 * b + i]],
                       signs >> 4 * i, 4);
        }
        set_scales(out, 2 * b, 2, d, word >> 28);
    }
}

void moe_unpack_iq3_s(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq3_s *block = blocks;
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t upper = block->qh[i / 8] >> i % 8 & 1;
        set_signed(out->code + 4 * i, moe_iq3_s_bytes[block->qs[i] | upper << 8],
                   (uint32_t)block->signs[i / 2] >> 4 * (i % 2), 4);
    }
    for (uint32_t b = 0; b < 8; b++) {
        const uint32_t scale = block->scales[b / 2] >> 4 * (b % 2) & 15;
        set_scales(out, 2 * b, 2, moe_half_to_float(block->d), scale);
    }
}

/* Sets eight codes, in eighths of the value: eight times the point's value, plus or minus one. The
 * bytes hold eight times the point's value plus eight. */
static void set_eighths(int8_t *code, uint64_t bytes, bool minus)
{
    for (uint32_t i = 0; i < 8; i++) {
        code[i] = (int8_t)((int)(bytes >> 8 * i & 255) - 8 + (minus ? -1 : 1));
    }
}

void moe_unpack_iq1_s(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq1_s *block = blocks;
    const float d = moe_half_to_float(block->d) * 0.125f;
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t qh = block->qh[i / 4];
        const uint32_t point = block->qs[i] | (qh >> 3 * (i % 4) & 7) << 8;
        set_eighths(out->code + 8 * i, moe_iq1_bytes[point], qh >> 15 != 0);
    }
    for (uint32_t b = 0; b < 8; b++) {
        set_scales(out, 2 * b, 2, d, block->qh[b] >> 12 & 7);
    }
}

void moe_unpack_iq1_m(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_iq1_m *block = blocks;
    uint32_t half = 0;
    for (uint32_t i = 0; i < 4; i++) {
        half |= (uint32_t)(block->scales[i] >> 12) << 4 * i;
    }
    const float d = moe_half_to_float((uint16_t)half) * 0.125f;
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t qh = block->qh[i / 2] >> 4 * (i % 2) & 15;
        set_eighths(out->code + 8 * i, moe_iq1_bytes[block->qs[i] | (qh & 7) << 8], qh >> 3 != 0);
    }
    for (uint32_t j = 0; j < 16; j++) {
        set_scales(out, j, 1, d, block->scales[j / 4] >> 3 * (j % 4) & 7);
    }
}
