/* SPDX-License-Identifier: MIT */
/* The functions that the files of each instruction set give to vector_x86_init.c. */
#ifndef MOE_X86_VECTOR_X86_H
#define MOE_X86_VECTOR_X86_H

#include "cpu/kernels/vector_ops.h"

void moe_vector_kernels_init_avx2(moe_vector_kernels *kernels);
void moe_vector_kernels_init_avx512(moe_vector_kernels *kernels);
void moe_delta_init_avx2(moe_vector_kernels *kernels);
void moe_delta_init_avx512(moe_vector_kernels *kernels);
void moe_attend_page_avx2(const moe_attend_args *args);
void moe_attend_page_avx512(const moe_attend_args *args);

#endif
