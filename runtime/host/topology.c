/* SPDX-License-Identifier: MIT */
#include "runtime/host/topology.h"

#include <hwloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/host/cgroup.h"

static uint32_t count_of(hwloc_topology_t hw, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(hw, type);
    return n > 0 ? (uint32_t)n : 0;
}

static void read_caches(moe_topology *topology, hwloc_topology_t hw)
{
    static const struct {
        hwloc_obj_type_t type;
        uint32_t level;
        char kind;
    } levels[] = {
        {HWLOC_OBJ_L1CACHE, 1, 'd'},  {HWLOC_OBJ_L1ICACHE, 1, 'i'}, {HWLOC_OBJ_L2CACHE, 2, 'u'},
        {HWLOC_OBJ_L2ICACHE, 2, 'i'}, {HWLOC_OBJ_L3CACHE, 3, 'u'},  {HWLOC_OBJ_L4CACHE, 4, 'u'},
    };
    _Static_assert(sizeof levels / sizeof levels[0] <= MOE_MAX_CACHE_LEVELS, "levels fit");
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        hwloc_obj_t cache = hwloc_get_obj_by_type(hw, levels[i].type, 0);
        if (cache == NULL || cache->attr->cache.size == 0) {
            continue;
        }
        moe_cache_level *out = &topology->caches[topology->n_caches++];
        out->level = levels[i].level;
        out->kind = levels[i].kind;
        out->bytes = cache->attr->cache.size;
        out->count = count_of(hw, levels[i].type);
    }
}

static int read_numa(moe_topology *topology, hwloc_topology_t hw)
{
    uint32_t n = count_of(hw, HWLOC_OBJ_NUMANODE);
    topology->numa_nodes = moe_calloc(n, sizeof *topology->numa_nodes);
    if (topology->numa_nodes == NULL) {
        return MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(hw, HWLOC_OBJ_NUMANODE, i);
        topology->numa_nodes[i].number = node->os_index;
        topology->numa_nodes[i].bytes = node->attr->numanode.local_memory;
    }
    topology->n_numa_nodes = n;
    return MOE_OK;
}

static uint32_t node_of(hwloc_obj_t core)
{
    int node = core->nodeset == NULL ? -1 : hwloc_bitmap_first(core->nodeset);
    return node < 0 ? 0 : (uint32_t)node;
}

/* hwloc hides CPUs that the cpuset controller forbids; the affinity mask (taskset) also applies. */
static int read_cores(moe_topology *topology, hwloc_topology_t hw, hwloc_cpuset_t affinity)
{
    uint32_t n = count_of(hw, HWLOC_OBJ_CORE);
    /* Some virtual machines show processing units without cores; each then counts as a core. */
    hwloc_obj_type_t type = n > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    n = count_of(hw, type);
    topology->n_cores = n;
    topology->usable_cores = moe_calloc(n, sizeof *topology->usable_cores);
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
    if (topology->usable_cores == NULL || allowed == NULL) {
        hwloc_bitmap_free(allowed);
        return MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < n; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(hw, type, i);
        hwloc_bitmap_and(allowed, core->cpuset, affinity);
        if (hwloc_bitmap_iszero(allowed)) {
            continue;
        }
        hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_PACKAGE, core);
        moe_core *out = &topology->usable_cores[topology->n_usable_cores++];
        out->cpu = hwloc_bitmap_first(allowed);
        out->package = package == NULL ? 0 : package->logical_index;
        out->numa_node = node_of(core);
        topology->n_usable_cpus += (uint32_t)hwloc_bitmap_weight(allowed);
    }
    hwloc_bitmap_free(allowed);
    return MOE_OK;
}

static void read_cpu_model(moe_topology *topology, hwloc_topology_t hw)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(hw, HWLOC_OBJ_PACKAGE, 0);
    const char *model = NULL;
    if (package != NULL) {
        model = hwloc_obj_get_info_by_name(package, "CPUModel");
    }
    if (model == NULL) {
        model = hwloc_obj_get_info_by_name(hwloc_get_root_obj(hw), "CPUModel");
    }
    snprintf(topology->cpu_model, sizeof topology->cpu_model, "%s", model == NULL ? "" : model);
}

static int read_all(moe_topology *topology, hwloc_topology_t hw, hwloc_cpuset_t affinity)
{
    if (hwloc_get_cpubind(hw, affinity, HWLOC_CPUBIND_PROCESS) != 0) {
        hwloc_bitmap_copy(affinity, hwloc_topology_get_allowed_cpuset(hw));
    }
    topology->n_packages = count_of(hw, HWLOC_OBJ_PACKAGE);
    topology->n_cpus = count_of(hw, HWLOC_OBJ_PU);
    read_cpu_model(topology, hw);
    read_caches(topology, hw);
    MOE_TRY(read_numa(topology, hw));
    return read_cores(topology, hw, affinity);
}

int moe_topology_read(moe_topology *topology, moe_error *err)
{
    hwloc_topology_t hw;
    memset(topology, 0, sizeof *topology);
    if (hwloc_topology_init(&hw) != 0) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the processor topology");
    }
    if (hwloc_topology_load(hw) != 0) {
        hwloc_topology_destroy(hw);
        return moe_fail(err, MOE_ERR_DEVICE,
                        "hwloc cannot read the processor topology: are /proc "
                        "and /sys mounted?");
    }
    hwloc_cpuset_t affinity = hwloc_bitmap_alloc();
    int status = affinity == NULL ? MOE_ERR_MEMORY : read_all(topology, hw, affinity);
    hwloc_bitmap_free(affinity);
    hwloc_topology_destroy(hw);
    if (status != MOE_OK) {
        moe_topology_free(topology);
        return moe_fail(err, status, "out of memory for the processor topology");
    }
    moe_cgroup_limits limits;
    moe_cgroup_read(&limits, "");
    topology->cpu_quota = limits.cpu_quota;
    return MOE_OK;
}

void moe_topology_free(moe_topology *topology)
{
    free(topology->usable_cores);
    free(topology->numa_nodes);
    memset(topology, 0, sizeof *topology);
}

uint32_t moe_topology_default_threads(const moe_topology *topology)
{
    uint32_t n = topology->n_usable_cores;
    if (topology->cpu_quota > 0 && topology->cpu_quota < n) {
        n = (uint32_t)ceil(topology->cpu_quota);
    }
    return n > 0 ? n : 1;
}
