/* SPDX-License-Identifier: MIT */
/* The functions from which cpu/kernel_tables.c assembles the tables: reference C, and the kernels
 * of the processor architecture. Meson picks the architecture's files, or arch_generic.c, which has
 * no kernels. */
#ifndef MOE_CPU_ARCH_KERNELS_H
#define MOE_CPU_ARCH_KERNELS_H

#include "cpu/kernels/matmul.h"
#include "cpu/kernels/vector_ops.h"

/* MOE_CPU_ bits that processor and operating system support. */
unsigned moe_cpu_features_detect(void);

/* Fill in all entries. */
void moe_matmul_kernels_reference(moe_matmul_kernels *kernels);
void moe_vector_kernels_reference(moe_vector_kernels *kernels);
/* Override the entries for which the features allow a faster kernel. */
void moe_matmul_kernels_init_arch(moe_matmul_kernels *kernels, unsigned cpu_features);
void moe_vector_kernels_init_arch(moe_vector_kernels *kernels, unsigned cpu_features);

#endif
