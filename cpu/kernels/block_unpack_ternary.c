/* SPDX-License-Identifier: MIT */
/* The definition of the ternary types and of NVFP4, in plain C. */
#include "cpu/kernels/block_unpack_iq.h"

static const int8_t nvfp4_codes[16] = {MOE_MXFP4_CODES};

static void set_scale(moe_unpacked *out, float scale)
{
    for (uint32_t j = 0; j < MOE_GROUP / 16; j++) {
        out->scale[j] = scale;
    }
}

/* Digit i in base 3 of a byte; digit 0 is the most significant. The byte is a fraction in units of
 * 1/256, rounded up: its digits are the first digits of that fraction. Multiplying by 3^i and
 * dropping the whole part removes the earlier digits. The whole part of three times the rest is
 * then the digit. */
static int base_3_digit(uint8_t byte, int i)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t rest = (uint8_t)(byte * power[i]);
    return rest * 3 >> 8;
}

/* The order of the elements: digit 0 of the first 32 bytes, then their digit 1, and so on; then the
 * next 16 bytes in the same way, then the last 4. */
void moe_unpack_tq1_0(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_tq1_0 *block = blocks;
    int8_t *code = out->code;
    for (int i = 0; i < 160; i++) {
        *code++ = (int8_t)(base_3_digit(block->qs[i % 32], i / 32) - 1);
    }
    for (int i = 0; i < 80; i++) {
        *code++ = (int8_t)(base_3_digit(block->qs[32 + i % 16], i / 16) - 1);
    }
    for (int i = 0; i < 16; i++) {
        *code++ = (int8_t)(base_3_digit(block->qh[i % 4], i / 4) - 1);
    }
    set_scale(out, moe_half_to_float(block->d));
}

void moe_unpack_tq2_0(const void *blocks, uint32_t n, moe_unpacked *out)
{
    (void)n;
    const moe_block_tq2_0 *block = blocks;
    for (uint32_t i = 0; i < MOE_GROUP; i++) {
        const int pair = block->qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
        out->code[i] = (int8_t)(pair - 1);
    }
    set_scale(out, moe_half_to_float(block->d));
}

void moe_unpack_nvfp4(const void *blocks, uint32_t n, moe_unpacked *out)
{
    const moe_block_nvfp4 *block = blocks;
    for (uint32_t j = 0; j < n / 16; j++) {
        const uint8_t *qs = block[j / 4].qs + 8 * (j % 4);
        for (uint32_t i = 0; i < 8; i++) {
            out->code[16 * j + i] = nvfp4_codes[qs[i] & 15];
            out->code[16 * j + 8 + i] = nvfp4_codes[qs[i] >> 4];
        }
        out->scale[j] = moe_half_to_float(moe_ue4m3_half(block[j / 4].d[j % 4])) * 128;
    }
}
