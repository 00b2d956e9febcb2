/* SPDX-License-Identifier: MIT */
#include "cpu/x86/lanes16_avx2.h"
#include "cpu/x86/delta_lanes.h"
#include "cpu/x86/vector_x86.h"

void moe_delta_init_avx2(moe_vector_kernels *kernels)
{
    kernels->convolve = convolve_lanes;
    kernels->row_decays = row_decays_lanes;
    kernels->bounded_decays = bounded_decays_lanes;
    kernels->delta_columns = delta_columns_lanes;
    kernels->channel_columns = channel_columns_lanes;
    kernels->space_columns = space_columns_lanes;
    kernels->scan_columns = scan_columns_lanes;
}
