/* SPDX-License-Identifier: MIT */
#include "cpu/kernels/cpu_features.h"

#include "cpu/kernels/arch_kernels.h"

#include <stdio.h>

static const struct {
    unsigned bit;
    const char *name;
} feature_names[] = {
    {MOE_CPU_AVX2, "AVX2"},
    {MOE_CPU_AVX_VNNI, "AVX-VNNI"},
    {MOE_CPU_AVX512, "AVX-512"},
    {MOE_CPU_AVX512_VNNI, "AVX-512-VNNI"},
    {MOE_CPU_AVX512_VBMI, "AVX-512-VBMI"},
    {MOE_CPU_AMX_INT8, "AMX-INT8"},
    {MOE_CPU_NEON, "NEON"},
    {MOE_CPU_NEON_DOTPROD, "DOTPROD"},
    {MOE_CPU_NEON_I8MM, "I8MM"},
};

unsigned moe_cpu_features(void)
{
    return moe_cpu_features_detect();
}

unsigned moe_cpu_features_of(moe_kernels kernels)
{
    static const unsigned wanted[] = {
        [MOE_KERNELS_NATIVE] = ~0u,
        [MOE_KERNELS_REFERENCE] = 0,
        [MOE_KERNELS_AVX2] = MOE_CPU_AVX2,
        [MOE_KERNELS_AVX512] =
            MOE_CPU_AVX2 | MOE_CPU_AVX512 | MOE_CPU_AVX512_VNNI | MOE_CPU_AVX512_VBMI,
    };
    return wanted[kernels] & moe_cpu_features();
}

void moe_cpu_features_describe(unsigned mask, char *out, size_t size)
{
    size_t used = 0;
    if (size == 0) {
        return;
    }
    snprintf(out, size, "%s", mask != 0 ? "" : "reference C");
    for (size_t i = 0; i < sizeof feature_names / sizeof feature_names[0]; i++) {
        if ((mask & feature_names[i].bit) != 0 && used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? " " : "",
                                     feature_names[i].name);
        }
    }
}
