/* SPDX-License-Identifier: MIT */
/* Replaces matmul_amx.c if the compiler does not know the matrix unit. */
#include "cpu/x86/matmul_amx.h"

#include "cpu/x86/matmul_x86.h"

bool moe_amx_granted(void)
{
    return false;
}

void moe_matmul_init_amx(moe_matmul_kernels *kernels)
{
    (void)kernels;
}
