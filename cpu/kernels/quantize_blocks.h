/* SPDX-License-Identifier: MIT */
/* Quantises rows of floats to block types of the file: Q4_0, Q2_K and Q3_K.
 *
 * Q4_0: the element of the greatest magnitude (the first of equals) gets code -8. With d = x / -8
 * and id = 1 / d in float32, code = floor(x * id + 8.5) - 8 in double, at most 7; d is stored as a
 * half. These are the bits that the format's reference gives.
 *
 * Q2_K, Q3_K: a search for scales that make the sum of importance * (x - value)^2 small, where
 * value is what a reader of the block gets for x. The result depends on the input alone. */
#ifndef MOE_CPU_QUANTIZE_BLOCKS_H
#define MOE_CPU_QUANTIZE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/dtype.h"

bool moe_can_quantize(moe_dtype type);

/* x: [n], finite; n is a multiple of the type's block. importance: [n], finite and not negative; or
 * NULL: all equal. Q4_0 does not use it. out: [moe_dtype_row_bytes(type, n)]. If values are too
 * great for a half scale, the scale becomes infinite, and the reader of the file refuses it. */
void moe_quantize_row(moe_dtype type, const float *x, const float *importance, uint32_t n,
                      void *out);

#endif
