/* SPDX-License-Identifier: MIT */
#include "runtime/host/memory_limits.h"

#include <sys/sysinfo.h>

#include "runtime/host/cgroup.h"
#include "runtime/host/sysfs.h"

/* Asks the kernel if /proc is hidden or no descriptor is left to open it. This figure does not
 * include pages that the kernel could reclaim. */
static uint64_t machine_available(void)
{
    char meminfo[8192];
    uint64_t kib;
    struct sysinfo info;
    if (moe_sysfs_read(meminfo, sizeof meminfo, "/proc/meminfo") &&
        moe_sysfs_find_u64(meminfo, "MemAvailable:", &kib)) {
        return kib * 1024;
    }
    return sysinfo(&info) == 0 ? (uint64_t)(info.freeram + info.bufferram) * info.mem_unit : 0;
}

uint64_t moe_memory_available(void)
{
    moe_cgroup_limits limits;
    uint64_t machine = machine_available();
    moe_cgroup_read(&limits, "");
    if (!limits.memory_limited) {
        return machine;
    }
    uint64_t left = moe_cgroup_memory_left(&limits);
    return left < machine ? left : machine;
}

uint64_t moe_memory_limit(void)
{
    char meminfo[8192];
    uint64_t kib = 0;
    moe_cgroup_limits limits;
    struct sysinfo info;
    uint64_t least = UINT64_MAX;
    if (moe_sysfs_read(meminfo, sizeof meminfo, "/proc/meminfo") &&
        moe_sysfs_find_u64(meminfo, "MemTotal:", &kib)) {
        least = kib * 1024;
    } else if (sysinfo(&info) == 0) {
        least = (uint64_t)info.totalram * info.mem_unit;
    }
    moe_cgroup_read(&limits, "");
    return limits.memory_limited && limits.memory_limit < least ? limits.memory_limit : least;
}

uint64_t moe_memory_process(void)
{
    char status[8192];
    uint64_t kib = 0;
    if (moe_sysfs_read(status, sizeof status, "/proc/self/status")) {
        moe_sysfs_find_u64(status, "VmRSS:", &kib);
    }
    return kib * 1024;
}
