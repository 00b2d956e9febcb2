/* SPDX-License-Identifier: MIT */
/* Products of types whose rows begin with a scale: a kernel multiplies the blocks behind the scale,
 * then the outputs are multiplied by the scale. */
#ifndef MOE_CPU_ROW_SCALES_H
#define MOE_CPU_ROW_SCALES_H

#include "cpu/kernels/matmul.h"

/* The arguments for the product of the blocks alone, without the rows' scales. */
moe_matmul_args moe_matmul_behind_heads(const moe_matmul_args *args);
/* Multiplies every output with the scale of its weight row. */
void moe_matmul_scale_outputs(const moe_matmul_args *args);

#endif
