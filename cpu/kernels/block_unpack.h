/* SPDX-License-Identifier: MIT */
/* Unpacks blocks of every quantised type into the same parts: integer codes, scales, minima. The
 * reference product and the dequantisers use this; the kernels for instruction sets must agree with
 * it.
 *
 *  value of element i = scale[i / 16] * (float)code[i] + min[i / run]
 *
 * If a type's rows begin with a scale (moe_dtype_info.head_bytes), scale[] does not include it. */
#ifndef MOE_CPU_BLOCK_UNPACK_H
#define MOE_CPU_BLOCK_UNPACK_H

#include "cpu/kernels/block_formats.h"
#include "runtime/base/dtype.h"

#include <stdbool.h>

typedef struct moe_unpacked {
    int8_t code[MOE_GROUP];
    float scale[MOE_GROUP / 16];
    float min[MOE_GROUP / 16]; /* one for each run, with the sign with which it is added */
} moe_unpacked;

/* Unpacks n elements; n is a multiple of the type's block and at most MOE_GROUP. */
typedef void (*moe_unpack_fn)(const void *blocks, uint32_t n, moe_unpacked *out);

typedef struct moe_block_format {
    moe_unpack_fn unpack;
    uint32_t run;  /* elements that share a scale: 16 or 32 */
    bool has_mins; /* runs also have a minimum */
} moe_block_format;

/* NULL for float types and for numbers without a type. */
const moe_block_format *moe_block_format_of(moe_dtype type);

/* The scale with which a row begins; 1 for types whose rows begin without a scale. */
float moe_row_scale(moe_dtype type, const void *row);

#endif
