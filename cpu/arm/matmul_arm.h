/* SPDX-License-Identifier: MIT */
/* The functions that arch_arm.c puts into the kernel tables, by instruction set. */
#ifndef MOE_ARM_MATMUL_ARM_H
#define MOE_ARM_MATMUL_ARM_H

#include "cpu/kernels/matmul.h"
#include "cpu/kernels/vector_ops.h"

/* NEON, which every 64-bit ARM processor has. */
void moe_matmul_init_neon(moe_matmul_kernels *kernels);
void moe_vector_init_neon(moe_vector_kernels *kernels);
/* Products with instructions that multiply four bytes (FEAT_DotProd), or matrices of 2 x 8 bytes
 * (FEAT_I8MM). */
void moe_matmul_init_dotprod(moe_matmul_kernels *kernels);
void moe_matmul_init_i8mm(moe_matmul_kernels *kernels);

#endif
