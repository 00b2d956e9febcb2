/* SPDX-License-Identifier: MIT */
/* What the processor can do. Callers pass the mask of features to use as an argument, so that tests
 * can run the reference tables on any machine. */
#ifndef MOE_CPU_FEATURES_H
#define MOE_CPU_FEATURES_H

#include <stddef.h>

#include <moe/lab.h>

enum {
    MOE_CPU_AVX2 = 1,     /* AVX2 + FMA + F16C */
    MOE_CPU_AVX_VNNI = 2, /* vpdpbusd on 256 bits, VEX */
    MOE_CPU_AVX512 = 4,   /* F + BW + DQ + VL */
    MOE_CPU_AVX512_VNNI = 8,
    MOE_CPU_AVX512_VBMI = 16,
    MOE_CPU_AMX_INT8 = 32, /* the matrix unit, granted to the process by the operating system */
    MOE_CPU_NEON = 64,     /* 64-bit ARM */
    MOE_CPU_NEON_DOTPROD = 128,
    MOE_CPU_NEON_I8MM = 256
};

/* The features of this processor that the operating system enables. */
unsigned moe_cpu_features(void);

/* The feature mask for a choice of kernels: a subset of the processor's features. */
unsigned moe_cpu_features_of(moe_kernels kernels);

/* Writes the names of the features, such as "AVX2 AVX-512 VNNI ...", to out. */
void moe_cpu_features_describe(unsigned mask, char *out, size_t size);

#endif
