/* SPDX-License-Identifier: MIT */
/* The limits that control groups put on this process. A limit holds for a group and everything
 * below it. Of all limits from the process's own group up to the root that is mounted here, the
 * effective one is that which leaves least. Version 1 (a tree for each controller) and version 2
 * (one tree) are both read, because hybrid systems have some controllers in each. */
#ifndef MOE_HOST_CGROUP_H
#define MOE_HOST_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct moe_cgroup_limits {
    int memory_version;     /* 1 or 2: the version that has the memory controller; 0: none */
    bool memory_limited;    /* false: no group on the way has a limit */
    uint64_t memory_limit;  /* bytes, if memory_limited; in version 2 the lower of max and high */
    uint64_t memory_used;   /* bytes charged to the limiting group that cannot be freed at once: its
                             * usage without inactive page cache */
    char memory_group[256]; /* the limiting group, or the process's own if there is no limit */
    /* Microseconds so far in which a task of the process's own group waited for memory; 0: not
     * known, as in version 1. */
    uint64_t memory_stall_us;
    double cpu_quota; /* CPU time as a number of CPUs; 0: no quota */
} moe_cgroup_limits;

/* A process's group in one tree. */
typedef struct moe_cgroup_place {
    uint64_t groups; /* of which groups this is known (a hash of them); 0: nothing is known */
    int version;     /* 1 or 2 */
    char mount[512]; /* directory where the mounted part of the tree begins, with the root prefix */
    char group[512]; /* the process's group below it, "" or "/..." */
} moe_cgroup_place;

/* Bytes that the limiting group leaves; only when memory_limited. */
static inline uint64_t moe_cgroup_memory_left(const moe_cgroup_limits *limits)
{
    return limits->memory_limit > limits->memory_used ? limits->memory_limit - limits->memory_used
                                                      : 0;
}

/* The microseconds of the line "some ... total=" of a file of pressure (PSI); 0: it has none. */
uint64_t moe_stall_us(const char *pressure);

/* root: prefix of /proc and of the mount points, "" except in tests. Absent files mean no limit. */
void moe_cgroup_read(moe_cgroup_limits *limits, const char *root);

/* Reads the memory's limits alone, for callers that look often. *place keeps where the group's
 * files are, until the process moves to other groups; the caller sets it to zero before the first
 * call. */
void moe_cgroup_read_memory(moe_cgroup_limits *limits, moe_cgroup_place *place, const char *root);

#endif
