/* SPDX-License-Identifier: MIT */
/* Chooses among the instruction sets of x86 that were built. Compiled for the baseline processor.
 */
#include "cpu/x86/vector_x86.h"

#include "cpu/kernels/cpu_features.h"
#include "cpu/kernels/arch_kernels.h"

void moe_vector_kernels_init_arch(moe_vector_kernels *kernels, unsigned cpu_features)
{
    if ((cpu_features & MOE_CPU_AVX2) == 0)
        return;
    moe_vector_kernels_init_avx2(kernels);
    moe_delta_init_avx2(kernels);
#ifdef MOE_BUILT_AVX512
    if ((cpu_features & MOE_CPU_AVX512) != 0) {
        moe_vector_kernels_init_avx512(kernels);
        moe_delta_init_avx512(kernels);
    }
#endif
}
