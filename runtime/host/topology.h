/* SPDX-License-Identifier: MIT */
/* The processor as far as this process may use it: packages, cores, caches, NUMA nodes, by hwloc.
 */
#ifndef MOE_HOST_TOPOLOGY_H
#define MOE_HOST_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

/* A physical core with at least one logical CPU that the process's affinity allows. */
typedef struct moe_core {
    int cpu;            /* the system's number of its first allowed logical CPU, to which a thread
                         * is bound */
    uint32_t package;   /* logical index */
    uint32_t numa_node; /* system's number of the nearest node */
} moe_core;

typedef struct moe_cache_level {
    uint32_t level;
    char kind;      /* 'd' data, 'i' instructions, 'u' unified */
    uint64_t bytes; /* of one */
    uint32_t count; /* how many there are */
} moe_cache_level;

typedef struct moe_numa_node {
    uint32_t number; /* the system's */
    uint64_t bytes;
} moe_numa_node;

#define MOE_MAX_CACHE_LEVELS 8

typedef struct moe_topology {
    char cpu_model[128]; /* "" when not known */
    uint32_t n_packages; /* of the machine, as far as the process can see it */
    uint32_t n_cores;
    uint32_t n_cpus;
    uint32_t n_usable_cpus; /* by affinity */
    uint32_t n_usable_cores;
    moe_core *usable_cores; /* [n_usable_cores], neighbours in the topology are neighbours here */
    uint32_t n_caches;
    moe_cache_level caches[MOE_MAX_CACHE_LEVELS];
    uint32_t n_numa_nodes;
    moe_numa_node *numa_nodes;
    double cpu_quota; /* the cgroup's limit of CPU time, as a number of CPUs; 0: none */
} moe_topology;

int moe_topology_read(moe_topology *topology, moe_error *err);
void moe_topology_free(moe_topology *topology);

/* The default number of worker threads: the usable physical cores, at most the cgroup's CPU quota
 * rounded up, at least 1. */
uint32_t moe_topology_default_threads(const moe_topology *topology);

#endif
