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
void moe_matmul_init_avx512_vnni(moe_matmul_kernels *kernels);

/* For the quantised types' common function, which goes by args->type. */
static inline void moe_set_quantized_kernel(moe_matmul_kernels *kernels, moe_matmul_fn matmul)
{
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        if (info != NULL && !info->is_float) {
            kernels->matmul[type] = matmul;
        }
    }
}

#endif
