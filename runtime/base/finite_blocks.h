/* SPDX-License-Identifier: MIT */
/* Whether a tensor's bytes, as they come from the file, stand for numbers: its values, or where it
 * is quantised the scales of its blocks. */
#ifndef MOE_BASE_FINITE_BLOCKS_H
#define MOE_BASE_FINITE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOE_MOST_BLOCK_BYTES 256u

typedef struct moe_finite_scan {
    uint32_t type;
    uint32_t block_bytes; /* 0: a type that is not known, of which all bytes are taken */
    uint8_t carry[MOE_MOST_BLOCK_BYTES]; /* of a block whose rest is still to come */
    uint32_t n_carry;
    bool finite; /* so far */
} moe_finite_scan;

void moe_finite_scan_begin(moe_finite_scan *scan, uint32_t type);
void moe_finite_scan_bytes(moe_finite_scan *scan, const uint8_t *bytes, size_t n);

#endif
