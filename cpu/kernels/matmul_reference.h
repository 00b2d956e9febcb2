/* SPDX-License-Identifier: MIT */
/* The plain C that first fills the kernel table, and whose results every faster kernel must equal.
 */
#ifndef MOE_CPU_MATMUL_REFERENCE_H
#define MOE_CPU_MATMUL_REFERENCE_H

#include "cpu/kernels/matmul.h"

void moe_matmul_quantized_reference(const moe_matmul_args *args);
void moe_matmul_float_reference(const moe_matmul_args *args);
void moe_quantize_rows_reference(const float *x, size_t x_stride, uint32_t n_rows, uint32_t n_in,
                                 moe_q8_rows *out, uint32_t first_row);

/* NULL for numbers without a type. */
moe_dequantize_fn moe_dequantize_of(moe_dtype type);

#endif
