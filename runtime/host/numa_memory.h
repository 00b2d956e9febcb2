/* SPDX-License-Identifier: MIT */
#ifndef MOE_HOST_NUMA_MEMORY_H
#define MOE_HOST_NUMA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Spreads fresh pages of [memory, memory + bytes) over the NUMA nodes that this process may use,
 * page by page: weights are read by the threads of all nodes, so no node should serve them alone.
 * False, and nothing done, where there is one node or the kernel has no NUMA policy. */
bool moe_numa_interleave(void *memory, size_t bytes);

/* Fresh pages come from the node, as long as it has some: it is the one that a GPU is attached to.
 * False, and nothing done, where there is one node, or this one is not for this process. */
bool moe_numa_prefer(void *memory, size_t bytes, unsigned node);

#endif
