/* SPDX-License-Identifier: MIT */
/* For processors without vector kernels of their own: reference C runs there. */
#include "cpu/kernels/vector_reference.h"

void moe_vector_kernels_init_arch(moe_vector_kernels *kernels, unsigned cpu_features)
{
    (void)kernels;
    (void)cpu_features;
}
