/* SPDX-License-Identifier: MIT */
#include "runtime/host/memory_limits.h"

#include <sys/sysinfo.h>

#include "runtime/host/sysfs.h"

/* Asks the kernel if /proc is hidden or no descriptor is left to open it. This figure does not
 * include pages that the kernel could reclaim. */
static uint64_t machine_available(const char *root)
{
    char meminfo[8192];
    uint64_t kib;
    struct sysinfo info;
    if (moe_sysfs_read(meminfo, sizeof meminfo, "%s/proc/meminfo", root) &&
        moe_sysfs_find_u64(meminfo, "MemAvailable:", &kib)) {
        return kib * 1024;
    }
    return sysinfo(&info) == 0 ? (uint64_t)(info.freeram + info.bufferram) * info.mem_unit : 0;
}

void moe_memory_room_read(moe_memory_room *room, moe_cgroup_place *place, const char *root)
{
    char text[8192];
    uint64_t kib = 0;
    moe_cgroup_limits limits;
    *room = (moe_memory_room){.available = (int64_t)machine_available(root)};
    if (moe_sysfs_read(text, sizeof text, "%s/proc/self/status", root)) {
        moe_sysfs_find_u64(text, "VmRSS:", &kib);
    }
    room->process = kib * 1024;
    (void)moe_sysfs_read(text, sizeof text, "%s/proc/pressure/memory", root);
    moe_cgroup_read_memory(&limits, place, root);
    room->stall_us = moe_stall_us(text) + limits.memory_stall_us;
    if (limits.memory_limited) {
        const int64_t left = (int64_t)limits.memory_limit - (int64_t)limits.memory_used;
        room->available = left < room->available ? left : room->available;
    }
}

uint64_t moe_memory_available(void)
{
    moe_memory_room room;
    moe_cgroup_place place = {0};
    moe_memory_room_read(&room, &place, "");
    return room.available > 0 ? (uint64_t)room.available : 0;
}

uint64_t moe_memory_limit(void)
{
    char meminfo[8192];
    uint64_t kib = 0;
    moe_cgroup_limits limits;
    moe_cgroup_place place = {0};
    struct sysinfo info;
    uint64_t least = UINT64_MAX;
    if (moe_sysfs_read(meminfo, sizeof meminfo, "/proc/meminfo") &&
        moe_sysfs_find_u64(meminfo, "MemTotal:", &kib)) {
        least = kib * 1024;
    } else if (sysinfo(&info) == 0) {
        least = (uint64_t)info.totalram * info.mem_unit;
    }
    moe_cgroup_read_memory(&limits, &place, "");
    return limits.memory_limited && limits.memory_limit < least ? limits.memory_limit : least;
}

uint64_t moe_memory_process(void)
{
    moe_memory_room room;
    moe_cgroup_place place = {0};
    moe_memory_room_read(&room, &place, "");
    return room.process;
}
