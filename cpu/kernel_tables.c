/* SPDX-License-Identifier: MIT */
/* The kernel tables: filled by reference C first; then the processor's instruction sets override
 * entries. */
#include "cpu/kernels/arch_kernels.h"

void moe_matmul_kernels_init(moe_matmul_kernels *kernels, unsigned cpu_features)
{
    moe_matmul_kernels_reference(kernels);
    moe_matmul_kernels_init_arch(kernels, cpu_features);
}

void moe_vector_kernels_init(moe_vector_kernels *kernels, unsigned cpu_features)
{
    moe_vector_kernels_reference(kernels);
    moe_vector_kernels_init_arch(kernels, cpu_features);
}
