/* SPDX-License-Identifier: MIT */
/* Finds the processor's features by what Linux reports about it (HWCAP). This file is compiled for
 * the baseline of 64-bit ARM. */
#include "cpu/arm/matmul_arm.h"
#include "cpu/kernels/arch_kernels.h"
#include "cpu/kernels/cpu_features.h"

#include <sys/auxv.h>

/* As in Linux's asm/hwcap.h; older versions of that header lack some. */
enum { HWCAP_BIT_ASIMD = 1 << 1, HWCAP_BIT_DOTPROD = 1 << 20, HWCAP2_BIT_I8MM = 1 << 13 };

unsigned moe_cpu_features_detect(void)
{
    const unsigned long first = getauxval(AT_HWCAP);
    const unsigned long second = getauxval(AT_HWCAP2);
    if ((first & HWCAP_BIT_ASIMD) == 0) {
        return 0;
    }
    unsigned features = MOE_CPU_NEON;
    if ((first & HWCAP_BIT_DOTPROD) != 0) {
        features |= MOE_CPU_NEON_DOTPROD;
        features |= (second & HWCAP2_BIT_I8MM) != 0 ? MOE_CPU_NEON_I8MM : 0;
    }
    return features;
}

void moe_matmul_kernels_init_arch(moe_matmul_kernels *kernels, unsigned cpu_features)
{
    if ((cpu_features & MOE_CPU_NEON) == 0) {
        return;
    }
    moe_matmul_init_neon(kernels);
    if ((cpu_features & MOE_CPU_NEON_DOTPROD) != 0) {
        moe_matmul_init_dotprod(kernels);
        if ((cpu_features & MOE_CPU_NEON_I8MM) != 0) {
            moe_matmul_init_i8mm(kernels);
        }
    }
}

void moe_vector_kernels_init_arch(moe_vector_kernels *kernels, unsigned cpu_features)
{
    if ((cpu_features & MOE_CPU_NEON) != 0) {
        moe_vector_init_neon(kernels);
    }
}
