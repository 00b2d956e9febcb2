/* SPDX-License-Identifier: MIT */
/* What each processor architecture supplies; meson picks the file that does (cpu/x86/arch_x86.c, or
 * arch_generic.c, which supplies nothing). */
#ifndef MOE_CPU_ARCH_KERNELS_H
#define MOE_CPU_ARCH_KERNELS_H

#include "cpu/kernels/matmul.h"

/* MOE_CPU_ bits that processor and operating system support. */
unsigned moe_cpu_features_detect(void);

/* Overrides entries of the table by what the features allow. */
void moe_matmul_kernels_init_arch(moe_matmul_kernels *kernels, unsigned cpu_features);

#endif
