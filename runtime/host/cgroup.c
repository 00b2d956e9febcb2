/* SPDX-License-Identifier: MIT */
/* Two files say where the process's group is:
 *
 *  /proc/self/cgroup      "4:memory:/jobs/a" (v1)   "0::/jobs/a" (v2)   its path in the hierarchy
 *  /proc/self/mountinfo   where that hierarchy is mounted, and which part of it (a container may
 *                         see a subtree as the root of the mount) */
#include "runtime/host/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/host/sysfs.h"

/* Whether name is one of the comma-separated words of list (of size bytes). */
static bool has_word(const char *list, size_t size, const char *name)
{
    size_t length = strlen(name);
    for (size_t at = 0; at < size;) {
        size_t end = at;
        while (end < size && list[end] != ',') {
            end++;
        }
        if (end - at == length && memcmp(list + at, name, length) == 0) {
            return true;
        }
        at = end + 1;
    }
    return false;
}

/* Finds the path of this process's group in the hierarchy of `controller`, or in the v2 hierarchy.
 */
static bool find_group(const char *proc_cgroup, const char *controller, int version, char *group,
                       size_t size)
{
    for (const char *line = proc_cgroup; line != NULL && *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const char *names = memchr(line, ':', length);
        const char *path =
            names == NULL ? NULL : memchr(names + 1, ':', length - (size_t)(names + 1 - line));
        if (path != NULL) {
            size_t names_size = (size_t)(path - names - 1);
            bool match =
                version == 2 ? names_size == 0 : has_word(names + 1, names_size, controller);
            size_t path_size = length - (size_t)(path + 1 - line);
            if (match && path_size < size) {
                memcpy(group, path + 1, path_size);
                group[path_size] = '\0';
                return true;
            }
        }
        line = line[length] == '\n' ? line + length + 1 : NULL;
    }
    return false;
}

/* Finds the mount point and mounted subtree of the hierarchy: fields 5 and 4 of a mountinfo line,
 * whose type and super options follow " - ". */
static bool find_mount(const char *mountinfo, const char *controller, int version, char *mount,
                       char *mount_root)
{
    for (const char *line = mountinfo; line != NULL && *line != '\0';) {
        char type[32];
        char options[256];
        size_t length = strcspn(line, "\n");
        const char *tail = strstr(line, " - ");
        if (tail != NULL && tail < line + length &&
            sscanf(line, "%*s %*s %*s %511s %511s", mount_root, mount) == 2 &&
            sscanf(tail + 3, "%31s %*s %255s", type, options) == 2) {
            bool match = version == 2 ? strcmp(type, "cgroup2") == 0
                                      : strcmp(type, "cgroup") == 0 &&
                                            has_word(options, strlen(options), controller);
            if (match) {
                return true;
            }
        }
        line = line[length] == '\n' ? line + length + 1 : NULL;
    }
    return false;
}

/* What the two files say; read once for all controllers. */
typedef struct proc_texts {
    char groups[8192];
    char mounts[32768]; /* "" until it is asked for */
    const char *root;
} proc_texts;

static bool read_groups(proc_texts *texts, const char *root)
{
    texts->root = root;
    texts->mounts[0] = '\0';
    return moe_sysfs_read(texts->groups, sizeof texts->groups, "%s/proc/self/cgroup", root);
}

static bool find_place(moe_cgroup_place *out, proc_texts *texts, const char *controller,
                       int version)
{
    char group[512];
    char mount[512];
    char mount_root[512];
    if (!find_group(texts->groups, controller, version, group, sizeof group) ||
        (texts->mounts[0] == '\0' && !moe_sysfs_read(texts->mounts, sizeof texts->mounts,
                                                     "%s/proc/self/mountinfo", texts->root)) ||
        !find_mount(texts->mounts, controller, version, mount, mount_root)) {
        return false;
    }
    /* If a subtree is mounted, the group's path is relative to it. */
    const char *below = group;
    size_t root_size = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);
    if (strncmp(group, mount_root, root_size) == 0) {
        below += root_size;
    }
    int length = snprintf(out->mount, sizeof out->mount, "%s%s", texts->root, mount);
    if (length < 0 || (size_t)length >= sizeof out->mount) {
        return false;
    }
    out->version = version;
    snprintf(out->group, sizeof out->group, "%s", strcmp(below, "/") == 0 ? "" : below);
    return true;
}

/* The v2 tree may be mounted without the memory controller; its root has no limit file. */
static bool find_memory_place(moe_cgroup_place *out, proc_texts *texts)
{
    char probe[64];
    for (int version = 2; version >= 1; version--) {
        const char *usage = version == 2 ? "memory.current" : "memory.usage_in_bytes";
        if (find_place(out, texts, "memory", version) &&
            moe_sysfs_read(probe, sizeof probe, "%s%s/%s", out->mount, out->group, usage)) {
            return true;
        }
    }
    return false;
}

/* Cuts off the last component of the path; false at the top. */
static bool parent_group(char *group)
{
    char *slash = strrchr(group, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

/* Version 1 writes "no limit" as a number near 2^63, version 2 as "max". Beyond memory.high a group
 * is slowed down, beyond memory.max it is killed. */
static bool read_memory_limit(const moe_cgroup_place *at, const char *group, uint64_t *limit)
{
    uint64_t high;
    const char *file = at->version == 2 ? "memory.max" : "memory.limit_in_bytes";
    bool limited = moe_sysfs_read_u64(limit, "%s%s/%s", at->mount, group, file) &&
                   *limit < (UINT64_C(1) << 62);
    if (at->version == 2 && moe_sysfs_read_u64(&high, "%s%s/memory.high", at->mount, group)) {
        *limit = limited && *limit < high ? *limit : high;
        limited = true;
    }
    return limited;
}

static uint64_t read_memory_used(const moe_cgroup_place *at, const char *group)
{
    char stat[8192];
    uint64_t used = 0;
    uint64_t inactive = 0;
    const char *file = at->version == 2 ? "memory.current" : "memory.usage_in_bytes";
    const char *key = at->version == 2 ? "inactive_file" : "total_inactive_file";
    if (!moe_sysfs_read_u64(&used, "%s%s/%s", at->mount, group, file)) {
        return 0;
    }
    if (moe_sysfs_read(stat, sizeof stat, "%s%s/memory.stat", at->mount, group)) {
        moe_sysfs_find_u64(stat, key, &inactive);
    }
    return used > inactive ? used - inactive : 0;
}

uint64_t moe_stall_us(const char *pressure)
{
    uint64_t us = 0;
    const char *total = strncmp(pressure, "some ", 5) == 0 ? strstr(pressure, " total=") : NULL;
    return total != NULL && sscanf(total, " total=%" SCNu64, &us) == 1 ? us : 0;
}

static void read_memory(moe_cgroup_limits *limits, const moe_cgroup_place *at)
{
    limits->memory_version = at->version;
    snprintf(limits->memory_group, sizeof limits->memory_group, "%.255s",
             at->group[0] == '\0' ? "/" : at->group);
    char pressure[256];
    (void)moe_sysfs_read(pressure, sizeof pressure, "%s%s/memory.pressure", at->mount, at->group);
    const uint64_t stall_us = moe_stall_us(pressure);
    char group[sizeof at->group];
    memcpy(group, at->group, sizeof group);
    do {
        moe_cgroup_limits candidate = {.memory_limited = true, .memory_version = at->version};
        if (!read_memory_limit(at, group, &candidate.memory_limit)) {
            continue;
        }
        candidate.memory_used = read_memory_used(at, group);
        if (!limits->memory_limited ||
            moe_cgroup_memory_left(&candidate) < moe_cgroup_memory_left(limits)) {
            *limits = candidate;
            snprintf(limits->memory_group, sizeof limits->memory_group, "%.255s",
                     group[0] == '\0' ? "/" : group);
        }
    } while (parent_group(group));
    limits->memory_stall_us = stall_us;
}

static double read_quota(const moe_cgroup_place *at, const char *group)
{
    uint64_t quota;
    uint64_t period;
    if (at->version == 1) {
        /* -1, "no quota", does not parse as a number. */
        return moe_sysfs_read_u64(&quota, "%s%s/cpu.cfs_quota_us", at->mount, group) &&
                       moe_sysfs_read_u64(&period, "%s%s/cpu.cfs_period_us", at->mount, group) &&
                       period > 0
                   ? (double)quota / (double)period
                   : 0;
    }
    char line[64];
    unsigned long long max_us;
    unsigned long long period_us;
    if (moe_sysfs_read_line(line, sizeof line, "%s%s/cpu.max", at->mount, group) &&
        sscanf(line, "%llu %llu", &max_us, &period_us) == 2 && period_us > 0) {
        return (double)max_us / (double)period_us;
    }
    return 0;
}

static void read_cpu(moe_cgroup_limits *limits, proc_texts *texts, int version)
{
    moe_cgroup_place at;
    if (!find_place(&at, texts, "cpu", version)) {
        return;
    }
    do {
        double quota = read_quota(&at, at.group);
        if (quota > 0 && (limits->cpu_quota == 0 || quota < limits->cpu_quota)) {
            limits->cpu_quota = quota;
        }
    } while (parent_group(at.group));
}

void moe_cgroup_read(moe_cgroup_limits *limits, const char *root)
{
    proc_texts texts;
    moe_cgroup_place memory;
    *limits = (moe_cgroup_limits){0};
    if (!read_groups(&texts, root)) {
        return;
    }
    if (find_memory_place(&memory, &texts)) {
        read_memory(limits, &memory);
    }
    read_cpu(limits, &texts, 2);
    read_cpu(limits, &texts, 1);
}

void moe_cgroup_read_memory(moe_cgroup_limits *limits, moe_cgroup_place *place, const char *root)
{
    proc_texts texts;
    *limits = (moe_cgroup_limits){0};
    if (!read_groups(&texts, root)) {
        return;
    }
    const uint64_t groups = XXH3_64bits(texts.groups, strlen(texts.groups)) | 1; /* never 0 */
    if (place->groups != groups) {
        place->groups = find_memory_place(place, &texts) ? groups : 0;
    }
    if (place->groups != 0) {
        read_memory(limits, place);
    }
}
