/* SPDX-License-Identifier: MIT */
#ifndef MOE_HOST_NUMA_MEMORY_H
#define MOE_HOST_NUMA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Spreads fresh pages of [memory, memory + bytes) over the NUMA nodes that this process may use,
 * page by page: threads of all nodes read the weights, so no single node should serve them. False,
 * without effect, if there is one node or the kernel has no NUMA policy. */
bool moe_numa_interleave(void *memory, size_t bytes);

/* Takes fresh pages from this node, for instance the node of a GPU, as long as it has free ones.
 * False, without effect, if there is only one node, or the process may not use this node. */
bool moe_numa_prefer(void *memory, size_t bytes, unsigned node);

#endif
