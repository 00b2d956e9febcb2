/* SPDX-License-Identifier: MIT */
/* Checks whether a tensor's bytes from the file are finite numbers: its values or, if it is
 * quantised, the scales of its blocks. */
#ifndef MOE_BASE_FINITE_BLOCKS_H
#define MOE_BASE_FINITE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOE_MOST_BLOCK_BYTES 256u

typedef struct moe_finite_scan {
    uint32_t type;
    uint32_t block_bytes;                /* 0: the type is unknown, so all bytes are accepted */
    uint8_t carry[MOE_MOST_BLOCK_BYTES]; /* the beginning of a block whose rest has not come yet */
    uint32_t n_carry;
    uint32_t head_bytes;    /* if rows begin with a scale: of it, and of a row; blocks are whole */
    uint64_t row_bytes, at; /* numbers then. at: bytes of the row seen so far */
    bool finite;            /* so far */
} moe_finite_scan;

/* Begins a scan of a whole tensor, or of whole rows of it; a row has row_elems elements. */
void moe_finite_scan_begin(moe_finite_scan *scan, uint32_t type, uint64_t row_elems);
void moe_finite_scan_bytes(moe_finite_scan *scan, const uint8_t *bytes, size_t n);

#endif
