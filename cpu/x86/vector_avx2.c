/* SPDX-License-Identifier: MIT */
#include "cpu/x86/lanes16_avx2.h"
#include "cpu/x86/forms_lanes.h"
#include "cpu/x86/vector_lanes.h"
#include "cpu/x86/vector_x86.h"

void moe_vector_kernels_init_avx2(moe_vector_kernels *kernels)
{
    vector_lanes_init(kernels);
    forms_lanes_init(kernels);
    kernels->attend_page = moe_attend_page_avx2;
}
