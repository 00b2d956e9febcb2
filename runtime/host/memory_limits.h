/* SPDX-License-Identifier: MIT */
#ifndef MOE_HOST_MEMORY_LIMITS_H
#define MOE_HOST_MEMORY_LIMITS_H

#include <stdint.h>

#include "runtime/host/cgroup.h"

/* Returns the bytes that this process may still allocate without swapping: the lesser of the
 * machine's available memory (/proc/meminfo) and the memory that cgroups (v1 or v2) leave. */
uint64_t moe_memory_available(void);

/* The most memory that this process can ever have: the least of the machine's memory and the limits
 * of the memory cgroups that it is in. UINT64_MAX when neither is known. */
uint64_t moe_memory_limit(void);

/* How much memory other processes leave now. */
typedef struct moe_memory_room {
    /* As moe_memory_available(); negative if a group's limit is lower than what the group holds. */
    int64_t available;
    uint64_t process;  /* resident set of this process */
    uint64_t stall_us; /* time in which tasks of the machine or the group have waited for memory so
                        * far */
} moe_memory_room;

/* place: as for moe_cgroup_read_memory(). root: prefix of /proc and of the mount points, ""
 * except in tests. */
void moe_memory_room_read(moe_memory_room *room, moe_cgroup_place *place, const char *root);

/* Resident set of this process now, in bytes. */
uint64_t moe_memory_process(void);

#endif
