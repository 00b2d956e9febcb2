/* SPDX-License-Identifier: MIT */
/* Blocks of every quantised type taken apart into the same parts: integer codes, scales, minima.
 * The reference product and the dequantisers are built on this; the ISA kernels must agree with it.
 *
 *   value of element i = scale[i / 16] * (float)code[i] + min[i / sub]        (sub: see min_sub) */
#ifndef MOE_CPU_BLOCK_UNPACK_H
#define MOE_CPU_BLOCK_UNPACK_H

#include "cpu/kernels/block_formats.h"
#include "runtime/base/dtype.h"

typedef struct moe_unpacked {
    int8_t code[MOE_GROUP];
    float scale[MOE_GROUP / 16];
    float
        min[MOE_GROUP / 16]; /* one per sub-block of min_sub elements, with the sign it is added */
} moe_unpacked;

/* n elements, a multiple of the type's block and at most MOE_GROUP. */
typedef void (*moe_unpack_fn)(const void *blocks, uint32_t n, moe_unpacked *out);

typedef struct moe_block_format {
    moe_unpack_fn unpack;
    uint32_t min_sub; /* elements that share a minimum: 16, 32, or 0 where the type has none */
} moe_block_format;

/* NULL for float types and numbers that are no type. */
const moe_block_format *moe_block_format_of(moe_dtype type);

#endif
