/* SPDX-License-Identifier: MIT */
#include "runtime/engine/finite_blocks.h"

#include <string.h>

#include "runtime/base/dtype.h"

#define F32_EXPONENT  0x7f800000u
#define F16_EXPONENT  0x7c00u
#define BF16_EXPONENT 0x7f80u

/* Where a block's half-precision scales are: one, or two next to each other. */
static const struct {
    int16_t first;
    uint8_t n;
} scales[MOE_DTYPE_LIMIT] = {
    [MOE_DTYPE_Q4_0] = {0, 1},   [MOE_DTYPE_Q4_1] = {0, 2},   [MOE_DTYPE_Q5_0] = {0, 1},
    [MOE_DTYPE_Q5_1] = {0, 2},   [MOE_DTYPE_Q8_0] = {0, 1},   [MOE_DTYPE_Q2_K] = {80, 2},
    [MOE_DTYPE_Q3_K] = {108, 1}, [MOE_DTYPE_Q4_K] = {0, 2},   [MOE_DTYPE_Q5_K] = {0, 2},
    [MOE_DTYPE_Q6_K] = {208, 1}, [MOE_DTYPE_IQ4_NL] = {0, 1}, [MOE_DTYPE_IQ4_XS] = {0, 1},
};

static bool half_is_finite(const uint8_t *at, uint16_t exponent)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return (bits & exponent) != exponent;
}

static bool block_is_finite(uint32_t type, const uint8_t *block)
{
    uint32_t bits;
    switch (type) {
    case MOE_DTYPE_F32:
        memcpy(&bits, block, sizeof bits);
        return (bits & F32_EXPONENT) != F32_EXPONENT;
    case MOE_DTYPE_F16:
        return half_is_finite(block, F16_EXPONENT);
    case MOE_DTYPE_BF16:
        return half_is_finite(block, BF16_EXPONENT);
    case MOE_DTYPE_MXFP4:
        return block[0] != 0xff; /* an exponent alone */
    default:
        for (int i = 0; i < scales[type].n; i++) {
            if (!half_is_finite(block + scales[type].first + 2 * i, F16_EXPONENT)) {
                return false;
            }
        }
        return true;
    }
}

void moe_finite_scan_begin(moe_finite_scan *scan, uint32_t type)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    *scan = (moe_finite_scan){
        .type = type, .block_bytes = info != NULL ? info->block_bytes : 0, .finite = true};
}

void moe_finite_scan_bytes(moe_finite_scan *scan, const uint8_t *bytes, size_t n)
{
    uint32_t size = scan->block_bytes;
    if (size == 0) {
        return;
    }
    if (scan->n_carry > 0) {
        size_t taken = size - scan->n_carry < n ? size - scan->n_carry : n;
        memcpy(scan->carry + scan->n_carry, bytes, taken);
        scan->n_carry += (uint32_t)taken;
        bytes += taken;
        n -= taken;
        if (scan->n_carry < size) {
            return;
        }
        scan->finite = scan->finite && block_is_finite(scan->type, scan->carry);
        scan->n_carry = 0;
    }
    bool finite = true;
    for (; n >= size; bytes += size, n -= size) {
        finite &= block_is_finite(scan->type, bytes);
    }
    scan->finite = scan->finite && finite;
    memcpy(scan->carry, bytes, n);
    scan->n_carry = (uint32_t)n;
}
