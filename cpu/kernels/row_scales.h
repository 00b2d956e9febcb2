/* SPDX-License-Identifier: MIT */
/* Products of types whose rows begin with a scale: a kernel multiplies the blocks behind it, then
 * the outputs are scaled. */
#ifndef MOE_CPU_ROW_SCALES_H
#define MOE_CPU_ROW_SCALES_H

#include "cpu/kernels/matmul.h"

/* The product of the blocks alone, without the rows' scales. */
moe_matmul_args moe_matmul_behind_heads(const moe_matmul_args *args);
/* Multiplies every output with the scale of its weight row. */
void moe_matmul_scale_outputs(const moe_matmul_args *args);

#endif
