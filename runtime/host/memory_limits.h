/* SPDX-License-Identifier: MIT */
#ifndef MOE_HOST_MEMORY_LIMITS_H
#define MOE_HOST_MEMORY_LIMITS_H

#include <stdint.h>

/* Bytes that this process may still allocate without swapping: the least of the machine's available
 * memory (/proc/meminfo) and what the memory cgroups (v1 or v2) leave. */
uint64_t moe_memory_available(void);

/* The most memory that this process can ever have: the least of the machine's memory and the limits
 * of the memory cgroups that it is in. UINT64_MAX when neither is known. */
uint64_t moe_memory_limit(void);

/* Resident set of this process now, in bytes. */
uint64_t moe_memory_process(void);

#endif
