/* SPDX-License-Identifier: MIT */
#include "runtime/base/finite_blocks.h"

#include <string.h>

#include "runtime/base/dtype.h"

#define F32_EXPONENT  0x7f800000u
#define F16_EXPONENT  0x7c00u
#define BF16_EXPONENT 0x7f80u

/* Where a block's half-precision scales are: one, or two adjacent ones. */
static const struct {
    int16_t first;
    uint8_t n;
} scales[MOE_DTYPE_LIMIT] = {
    [MOE_DTYPE_Q4_0] = {0, 1},    [MOE_DTYPE_Q4_1] = {0, 2},   [MOE_DTYPE_Q5_0] = {0, 1},
    [MOE_DTYPE_Q5_1] = {0, 2},    [MOE_DTYPE_Q8_0] = {0, 1},   [MOE_DTYPE_Q2_K] = {80, 2},
    [MOE_DTYPE_Q3_K] = {108, 1},  [MOE_DTYPE_Q4_K] = {0, 2},   [MOE_DTYPE_Q5_K] = {0, 2},
    [MOE_DTYPE_Q6_K] = {208, 1},  [MOE_DTYPE_IQ4_NL] = {0, 1}, [MOE_DTYPE_IQ4_XS] = {0, 1},
    [MOE_DTYPE_IQ2_XXS] = {0, 1}, [MOE_DTYPE_IQ2_XS] = {0, 1}, [MOE_DTYPE_IQ2_S] = {0, 1},
    [MOE_DTYPE_IQ3_XXS] = {0, 1}, [MOE_DTYPE_IQ3_S] = {0, 1},  [MOE_DTYPE_IQ1_S] = {0, 1},
    [MOE_DTYPE_TQ1_0] = {52, 1},  [MOE_DTYPE_TQ2_0] = {64, 1}, [MOE_DTYPE_IQ2_K] = {0, 1},
    [MOE_DTYPE_IQ3_K] = {0, 1},   [MOE_DTYPE_IQ4_K] = {0, 1},  [MOE_DTYPE_IQ5_K] = {0, 1},
    [MOE_DTYPE_IQ6_K] = {0, 1},
};

/* Loops with constant bounds and strides, so that the compiler can vectorise them. */

static bool words_are_finite(const uint8_t *bytes, size_t n)
{
    uint32_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, bytes + 4 * i, sizeof bits);
        n_wrong |= (bits & F32_EXPONENT) == F32_EXPONENT;
    }
    return n_wrong == 0;
}

static inline bool halves_are_finite(const uint8_t *bytes, size_t n, size_t stride,
                                     uint16_t exponent)
{
    uint16_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, bytes + stride * i, sizeof bits);
        n_wrong |= (bits & exponent) == exponent;
    }
    return n_wrong == 0;
}

/* For blocks whose scale is an exponent byte, where 255 means NaN. */
static bool exponents_are_finite(const uint8_t *bytes, size_t n, size_t stride)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        finite &= bytes[stride * i] != 0xff;
    }
    return finite;
}

/* IQ1_M has its half-precision scale in four pieces: the exponent is in bytes 53 and 55. */
static bool pieces_are_finite(const uint8_t *bytes, size_t n, size_t stride)
{
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = bytes + stride * i;
        finite &= (block[53] & 0xc0) != 0xc0 || (block[55] & 0x70) != 0x70;
    }
    return finite;
}

static bool blocks_are_finite(uint32_t type, const uint8_t *bytes, size_t n, size_t block_bytes)
{
    bool finite = true;
    switch (type) {
    case MOE_DTYPE_F32:
        return words_are_finite(bytes, n);
    case MOE_DTYPE_F16:
        return halves_are_finite(bytes, n, 2, F16_EXPONENT);
    case MOE_DTYPE_BF16:
        return halves_are_finite(bytes, n, 2, BF16_EXPONENT);
    case MOE_DTYPE_MXFP4:
        return exponents_are_finite(bytes, n, block_bytes);
    case MOE_DTYPE_IQ1_M:
        return pieces_are_finite(bytes, n, block_bytes);
    case MOE_DTYPE_NVFP4: /* every scale is a number */
        return true;
    default:
        for (int i = 0; i < scales[type].n; i++) {
            const uint8_t *first = bytes + scales[type].first + 2 * i;
            finite = finite && halves_are_finite(first, n, block_bytes, F16_EXPONENT);
        }
        return finite;
    }
}

void moe_finite_scan_begin(moe_finite_scan *scan, uint32_t type, uint64_t row_elems)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    *scan = (moe_finite_scan){
        .type = type, .block_bytes = info != NULL ? info->block_bytes : 0, .finite = true};
    if (info != NULL && info->head_bytes > 0) {
        scan->head_bytes = info->head_bytes;
        scan->row_bytes = moe_dtype_row_bytes((moe_dtype)type, row_elems);
    }
}

/* Scans the scale that each row begins with. */
static void scan_heads(moe_finite_scan *scan, const uint8_t *bytes, size_t n)
{
    const uint32_t head = scan->head_bytes;
    while (n > 0) {
        const uint64_t end = scan->at < head ? head : scan->row_bytes;
        const size_t taken = end - scan->at < n ? (size_t)(end - scan->at) : n;
        if (scan->at < head) {
            memcpy(scan->carry + scan->at, bytes, taken);
        }
        scan->at += taken;
        bytes += taken;
        n -= taken;
        if (scan->at == head) {
            scan->finite =
                scan->finite && (head == 4 ? words_are_finite(scan->carry, 1)
                                           : halves_are_finite(scan->carry, 1, 2, F16_EXPONENT));
        }
        scan->at = scan->at == scan->row_bytes ? 0 : scan->at;
    }
}

void moe_finite_scan_bytes(moe_finite_scan *scan, const uint8_t *bytes, size_t n)
{
    uint32_t size = scan->block_bytes;
    if (size == 0) {
        return;
    }
    if (scan->head_bytes > 0) {
        scan_heads(scan, bytes, n);
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
        scan->finite = scan->finite && blocks_are_finite(scan->type, scan->carry, 1, size);
        scan->n_carry = 0;
    }
    size_t n_whole = n / size;
    scan->finite = scan->finite && blocks_are_finite(scan->type, bytes, n_whole, size);
    bytes += n_whole * size;
    n -= n_whole * size;
    memcpy(scan->carry, bytes, n);
    scan->n_carry = (uint32_t)n;
}
