/* SPDX-License-Identifier: MIT */
/* Finds the processor's features by CPUID. A feature counts only if the operating system saves the
 * registers that it uses (XCR0), and if kernels for it were built (MOE_BUILT_ macros, which
 * cpu/meson.build sets). This file is compiled for the baseline processor. */
#include "cpu/kernels/arch_kernels.h"
#include "cpu/kernels/cpu_features.h"
#include "cpu/x86/matmul_amx.h"
#include "cpu/x86/matmul_x86.h"

#include <cpuid.h>
#include <stdbool.h>

enum {
    XCR0_YMM = 0x6,  /* SSE and AVX state */
    XCR0_ZMM = 0xe6, /* also opmask, upper ZMM halves, ZMM16..31 */
    LEAF1_ECX = 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29, /* FMA, OSXSAVE, AVX, F16C */
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_F_DQ = 1 << 16 | 1 << 17,
    LEAF7_ECX_VBMI = 1 << 1,
    LEAF7_ECX_VNNI = 1 << 11,
    LEAF7_1_EAX_AVX_VNNI = 1 << 4,
    LEAF7_EDX_AMX = 1 << 24 | 1 << 25, /* tiles, products of int8 */
    XCR0_TILES = 3 << 17
};
static const unsigned leaf7_ebx_bw_vl = 1u << 30 | 1u << 31;

/* The features that kernels were built for. AVX2 has all but the products in every build. */
static const unsigned built = MOE_CPU_AVX2
#ifdef MOE_BUILT_AVX_VNNI_PRODUCTS
                              | MOE_CPU_AVX_VNNI
#endif
#ifdef MOE_BUILT_AVX512
                              | MOE_CPU_AVX512
#endif
#ifdef MOE_BUILT_AVX512_VNNI_PRODUCTS
                              | MOE_CPU_AVX512_VNNI | MOE_CPU_AVX512_VBMI
#endif
#ifdef MOE_BUILT_AMX_PRODUCTS
                              | MOE_CPU_AMX_INT8
#endif
    ;

static unsigned xcr0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

unsigned moe_cpu_features_detect(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & LEAF1_ECX) != LEAF1_ECX) {
        return 0;
    }
    const unsigned state = xcr0();
    if ((state & XCR0_YMM) != XCR0_YMM || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        (b & LEAF7_EBX_AVX2) == 0) {
        return 0;
    }
    unsigned features = MOE_CPU_AVX2;
    const unsigned max_subleaf = a;
    const unsigned avx512 = LEAF7_EBX_F_DQ | leaf7_ebx_bw_vl;
    if ((state & XCR0_ZMM) == XCR0_ZMM && (b & avx512) == avx512) {
        features |= MOE_CPU_AVX512;
        features |= (c & LEAF7_ECX_VNNI) != 0 ? MOE_CPU_AVX512_VNNI : 0;
        features |= (c & LEAF7_ECX_VBMI) != 0 ? MOE_CPU_AVX512_VBMI : 0;
        if ((state & XCR0_TILES) == XCR0_TILES && (d & LEAF7_EDX_AMX) == LEAF7_EDX_AMX &&
            moe_amx_granted()) {
            features |= MOE_CPU_AMX_INT8;
        }
    }
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) &&
        (a & LEAF7_1_EAX_AVX_VNNI) != 0) {
        features |= MOE_CPU_AVX_VNNI;
    }
    return features & built;
}

static void init_avx2(moe_matmul_kernels *kernels)
{
    moe_quantize_init_avx2(kernels);
    moe_matmul_init_float_avx2(kernels);
#ifdef MOE_BUILT_AVX2_PRODUCTS
    moe_matmul_init_avx2_32(kernels);
    moe_matmul_init_avx2_bytes(kernels);
    moe_matmul_init_avx2_256(kernels);
    moe_matmul_init_avx2_256_16(kernels);
    moe_matmul_init_avx2_iq2(kernels);
    moe_matmul_init_avx2_iq3(kernels);
    moe_matmul_init_avx2_iq1(kernels);
    moe_matmul_init_avx2_ternary(kernels);
    moe_matmul_init_avx2_shifted_16(kernels);
    moe_matmul_init_avx2_shifted_32(kernels);
#endif
}

static void init_avx_vnni(moe_matmul_kernels *kernels)
{
#ifdef MOE_BUILT_AVX_VNNI_PRODUCTS
    moe_matmul_init_avx_vnni_32(kernels);
    moe_matmul_init_avx_vnni_bytes(kernels);
    moe_matmul_init_avx_vnni_256(kernels);
    moe_matmul_init_avx_vnni_256_16(kernels);
    moe_matmul_init_avx_vnni_iq2(kernels);
    moe_matmul_init_avx_vnni_iq3(kernels);
    moe_matmul_init_avx_vnni_iq1(kernels);
    moe_matmul_init_avx_vnni_ternary(kernels);
    moe_matmul_init_avx_vnni_shifted_16(kernels);
    moe_matmul_init_avx_vnni_shifted_32(kernels);
#endif
    (void)kernels;
}

static void init_avx512(moe_matmul_kernels *kernels)
{
#ifdef MOE_BUILT_AVX512
    moe_matmul_init_float_avx512(kernels);
#endif
    (void)kernels;
}

static void init_avx512_vnni(moe_matmul_kernels *kernels)
{
#ifdef MOE_BUILT_AVX512_VNNI_PRODUCTS
    moe_matmul_init_avx512_vnni_32(kernels);
    moe_matmul_init_avx512_vnni_bytes(kernels);
    moe_matmul_init_avx512_vnni_256(kernels);
    moe_matmul_init_avx512_vnni_256_16(kernels);
    moe_matmul_init_avx512_vnni_iq2(kernels);
    moe_matmul_init_avx512_vnni_iq3(kernels);
    moe_matmul_init_avx512_vnni_iq1(kernels);
    moe_matmul_init_avx512_vnni_ternary(kernels);
    moe_matmul_init_avx512_vnni_shifted_16(kernels);
    moe_matmul_init_avx512_vnni_shifted_32(kernels);
#endif
    (void)kernels;
}

void moe_matmul_kernels_init_arch(moe_matmul_kernels *kernels, unsigned cpu_features)
{
    if ((cpu_features & MOE_CPU_AVX2) == 0) {
        return;
    }
    init_avx2(kernels);
    if ((cpu_features & MOE_CPU_AVX_VNNI) != 0) {
        init_avx_vnni(kernels);
    }
    if ((cpu_features & MOE_CPU_AVX512) == 0) {
        return;
    }
    init_avx512(kernels);
    if ((cpu_features & MOE_CPU_AVX512_VNNI) != 0) {
        init_avx512_vnni(kernels);
        if ((cpu_features & MOE_CPU_AMX_INT8) != 0) {
            moe_matmul_init_amx(kernels);
        }
    }
}
