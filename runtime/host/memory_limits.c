/* SPDX-License-Identifier: MIT */
#include "runtime/host/memory_limits.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_SIZE 4096

/* The number after `key` at the start of a line; false when there is none ("max" included). */
static bool read_field(const char *path, const char *key, uint64_t *value)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    char line[512];
    bool found = false;
    size_t key_size = strlen(key);
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = strncmp(line, key, key_size) == 0 &&
                sscanf(line + key_size, "%" SCNu64, value) == 1;
    }
    fclose(file);
    return found;
}

/* What one group leaves: its limit minus what it uses and cannot drop. */
static uint64_t group_leaves(const char *group, const char *limit_name, const char *usage_name,
                             const char *reclaimable_key)
{
    char path[PATH_SIZE + 64];
    uint64_t limit, usage, reclaimable = 0;
    snprintf(path, sizeof path, "%s/%s", group, limit_name);
    if (!read_field(path, "", &limit)) {
        return UINT64_MAX;
    }
    snprintf(path, sizeof path, "%s/%s", group, usage_name);
    if (!read_field(path, "", &usage)) {
        return limit;
    }
    snprintf(path, sizeof path, "%s/memory.stat", group);
    (void)read_field(path, reclaimable_key, &reclaimable);
    usage = usage > reclaimable ? usage - reclaimable : 0;
    return limit > usage ? limit - usage : 0;
}

/* The least that a group and its ancestors leave. */
static uint64_t hierarchy_leaves(const char *root, const char *group, const char *limit_name,
                                 const char *usage_name, const char *reclaimable_key)
{
    char path[PATH_SIZE];
    int n = snprintf(path, sizeof path, "%s%s", root, group);
    if (n < 0 || (size_t)n >= sizeof path) {
        return UINT64_MAX;
    }
    uint64_t least = UINT64_MAX;
    for (;;) {
        uint64_t leaves = group_leaves(path, limit_name, usage_name, reclaimable_key);
        least = leaves < least ? leaves : least;
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash <= path + strlen(root) - 1) {
            return least;
        }
        *slash = '\0';
    }
}

static uint64_t cgroup_leaves(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) {
        return UINT64_MAX;
    }
    char line[PATH_SIZE];
    uint64_t least = UINT64_MAX;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        controllers++;
        uint64_t leaves = UINT64_MAX;
        if (controllers[0] == '\0') {
            leaves = hierarchy_leaves("/sys/fs/cgroup", group, "memory.max", "memory.current",
                                      "inactive_file ");
        } else if (strcmp(controllers, "memory") == 0) {
            leaves = hierarchy_leaves("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                                      "memory.usage_in_bytes", "total_inactive_file ");
        }
        least = leaves < least ? leaves : least;
    }
    fclose(file);
    return least;
}

uint64_t moe_memory_available(void)
{
    uint64_t kib = 0;
    (void)read_field("/proc/meminfo", "MemAvailable:", &kib);
    uint64_t machine = kib * 1024;
    uint64_t groups = cgroup_leaves();
    return machine < groups ? machine : groups;
}
