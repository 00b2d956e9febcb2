/* SPDX-License-Identifier: MIT */
#ifndef MOE_X86_MATMUL_AMX_H
#define MOE_X86_MATMUL_AMX_H

#include <stdbool.h>

/* Asks the operating system for the matrix unit's registers: the system reserves memory for them
 * only in processes that ask. Asking again changes nothing. False: the system refuses, or the
 * library's compiler does not know the unit. */
bool moe_amx_granted(void);

#endif
