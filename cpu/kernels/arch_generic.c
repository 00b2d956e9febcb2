/* SPDX-License-Identifier: MIT */
/* For processors without kernels of their own: reference C runs there. */
#include "cpu/kernels/arch_kernels.h"

unsigned moe_cpu_features_detect(void)
{
    return 0;
}

void moe_matmul_kernels_init_arch(moe_matmul_kernels *kernels, unsigned cpu_features)
{
    (void)kernels;
    (void)cpu_features;
}

void moe_vector_kernels_init_arch(moe_vector_kernels *kernels, unsigned cpu_features)
{
    (void)kernels;
    (void)cpu_features;
}
