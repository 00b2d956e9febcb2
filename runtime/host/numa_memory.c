/* SPDX-License-Identifier: MIT */
#include "runtime/host/numa_memory.h"

#include <numa.h>

bool moe_numa_interleave(void *memory, size_t bytes)
{
    if (numa_available() < 0) {
        return false;
    }
    struct bitmask *nodes = numa_get_mems_allowed();
    bool several = nodes != NULL && numa_bitmask_weight(nodes) > 1;
    if (several) {
        numa_interleave_memory(memory, bytes, nodes);
    }
    numa_bitmask_free(nodes);
    return several;
}

bool moe_numa_prefer(void *memory, size_t bytes, unsigned node)
{
    if (numa_available() < 0 || node > (unsigned)numa_max_node()) {
        return false;
    }
    struct bitmask *nodes = numa_get_mems_allowed();
    bool useful =
        nodes != NULL && numa_bitmask_weight(nodes) > 1 && numa_bitmask_isbitset(nodes, node) != 0;
    if (useful) {
        numa_tonode_memory(memory, bytes, (int)node);
    }
    numa_bitmask_free(nodes);
    return useful;
}
