/* SPDX-License-Identifier: MIT */
/* What each instruction set's files put into the kernel table. */
#ifndef MOE_X86_MATMUL_X86_H
#define MOE_X86_MATMUL_X86_H

#include "cpu/kernels/matmul.h"

void moe_quantize_init_avx2(moe_matmul_kernels *kernels);

/* Float weights. */
void moe_matmul_init_float_avx2(moe_matmul_kernels *kernels);
void moe_matmul_init_float_avx512(moe_matmul_kernels *kernels);

/* Quantised weights. */
void moe_matmul_init_avx2(moe_matmul_kernels *kernels);
void moe_matmul_init_avx_vnni(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_32(moe_matmul_kernels *kernels);
void moe_matmul_init_avx512_vnni_256(moe_matmul_kernels *kernels);

#endif
