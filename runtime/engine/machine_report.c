/* SPDX-License-Identifier: MIT */
/* moe_machine_describe(): describes the machine, as the engine sees it, as JSON. Sizes are in bytes
 * and their names say so; unknown values are null. */
#include <errno.h>
#include <dirent.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <json-c/json.h>
#include <moe/lab.h>
#include <moe/machine.h>
#include <moe/moe.h>

#include "cpu/kernels/cpu_features.h"
#include "cuda/cuda_loader.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/host/cgroup.h"
#include "runtime/host/storage.h"
#include "runtime/host/sysfs.h"
#include "runtime/host/topology.h"

/* Adds a member. json-c returns NULL when memory is short, and asserts that a container is not
 * NULL. */
static void put(struct json_object *object, const char *key, struct json_object *value)
{
    if (object == NULL || json_object_object_add(object, key, value) != 0) {
        json_object_put(value);
    }
}

static void append(struct json_object *array, struct json_object *value)
{
    if (array == NULL || json_object_array_add(array, value) != 0) {
        json_object_put(value);
    }
}

static void put_u64(struct json_object *object, const char *key, uint64_t value)
{
    put(object, key, json_object_new_uint64(value));
}

static void put_text(struct json_object *object, const char *key, const char *text)
{
    put(object, key, text[0] == '\0' ? NULL : json_object_new_string(text));
}

static void put_bool(struct json_object *object, const char *key, bool value)
{
    put(object, key, json_object_new_boolean(value));
}

static struct json_object *describe_system(void)
{
    struct json_object *system = json_object_new_object();
    struct utsname name;
    char text[sizeof name.sysname + sizeof name.release + 1] = "";
    if (uname(&name) == 0) {
        snprintf(text, sizeof text, "%s %s", name.sysname, name.release);
        put_text(system, "kernel", text);
        put_text(system, "architecture", name.machine);
    }
    put_text(system, "library", moe_version());
    return system;
}

static struct json_object *describe_caches(const moe_topology *topology)
{
    struct json_object *caches = json_object_new_array();
    for (uint32_t i = 0; i < topology->n_caches; i++) {
        const moe_cache_level *level = &topology->caches[i];
        char name[16];
        const char *kind = level->kind == 'u' ? "" : level->kind == 'd' ? "d" : "i";
        snprintf(name, sizeof name, "L%u%s", level->level, kind);
        struct json_object *cache = json_object_new_object();
        put_text(cache, "name", name);
        put_u64(cache, "bytes", level->bytes);
        put_u64(cache, "count", level->count);
        append(caches, cache);
    }
    return caches;
}

static struct json_object *describe_numa(const moe_topology *topology)
{
    struct json_object *nodes = json_object_new_array();
    for (uint32_t i = 0; i < topology->n_numa_nodes; i++) {
        struct json_object *node = json_object_new_object();
        put_u64(node, "node", topology->numa_nodes[i].number);
        put_u64(node, "memory_bytes", topology->numa_nodes[i].bytes);
        append(nodes, node);
    }
    return nodes;
}

static struct json_object *describe_cpu(const moe_topology *topology)
{
    struct json_object *cpu = json_object_new_object();
    char features[256];
    moe_cpu_features_describe(moe_cpu_features(), features, sizeof features);
    put_text(cpu, "model", topology->cpu_model);
    put_u64(cpu, "packages", topology->n_packages);
    put_u64(cpu, "cores", topology->n_cores);
    put_u64(cpu, "logical_cpus", topology->n_cpus);
    put_u64(cpu, "usable_cores", topology->n_usable_cores);
    put_u64(cpu, "usable_logical_cpus", topology->n_usable_cpus);
    put(cpu, "cgroup_cpu_quota",
        topology->cpu_quota > 0 ? json_object_new_double(topology->cpu_quota) : NULL);
    put_u64(cpu, "default_threads", moe_topology_default_threads(topology));
    put_text(cpu, "features", features);
    put(cpu, "caches", describe_caches(topology));
    put(cpu, "numa_nodes", describe_numa(topology));
    return cpu;
}

static void put_meminfo(struct json_object *memory, const char *key, const char *meminfo,
                        const char *field)
{
    uint64_t kib;
    bool known = moe_sysfs_find_u64(meminfo, field, &kib);
    put(memory, key, known ? json_object_new_uint64(kib * 1024) : NULL);
}

static struct json_object *describe_memory(void)
{
    struct json_object *memory = json_object_new_object();
    char meminfo[8192];
    moe_sysfs_read(meminfo, sizeof meminfo, "/proc/meminfo");
    put_meminfo(memory, "total_bytes", meminfo, "MemTotal:");
    put_meminfo(memory, "available_bytes", meminfo, "MemAvailable:");
    put_meminfo(memory, "swap_total_bytes", meminfo, "SwapTotal:");

    moe_cgroup_limits limits;
    moe_cgroup_read(&limits, "");
    struct json_object *cgroup = NULL;
    if (limits.memory_version != 0) {
        cgroup = json_object_new_object();
        put_u64(cgroup, "version", (uint64_t)limits.memory_version);
        put_text(cgroup, "group", limits.memory_group);
        put(cgroup, "limit_bytes",
            limits.memory_limited ? json_object_new_uint64(limits.memory_limit) : NULL);
        if (limits.memory_limited) {
            put_u64(cgroup, "used_bytes", limits.memory_used);
        }
    }
    put(memory, "cgroup", cgroup);

    struct rlimit lock;
    bool locks_limited = getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY;
    put(memory, "lock_limit_bytes", locks_limited ? json_object_new_uint64(lock.rlim_cur) : NULL);
    return memory;
}

static struct json_object *describe_huge_pages(void)
{
    struct json_object *huge = json_object_new_object();
    char modes[128];
    char mode[32] = "";
    /* "always [madvise] never": the brackets mark the active mode. */
    if (moe_sysfs_read_line(modes, sizeof modes, "/sys/kernel/mm/transparent_hugepage/enabled")) {
        const char *open_bracket = strchr(modes, '[');
        if (open_bracket != NULL && sscanf(open_bracket + 1, "%31[a-z]", mode) != 1) {
            mode[0] = '\0';
        }
    }
    put_text(huge, "transparent", mode);
    struct json_object *sizes = json_object_new_array();
    DIR *dir = opendir("/sys/kernel/mm/hugepages");
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        unsigned long long kib;
        uint64_t total = 0;
        uint64_t free_pages = 0;
        if (sscanf(entry->d_name, "hugepages-%llukB", &kib) != 1) {
            continue;
        }
        moe_sysfs_read_u64(&total, "/sys/kernel/mm/hugepages/%s/nr_hugepages", entry->d_name);
        moe_sysfs_read_u64(&free_pages, "/sys/kernel/mm/hugepages/%s/free_hugepages",
                           entry->d_name);
        struct json_object *size = json_object_new_object();
        put_u64(size, "page_bytes", kib * 1024);
        put_u64(size, "pages", total);
        put_u64(size, "free_pages", free_pages);
        append(sizes, size);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    put(huge, "reserved", sizes);
    return huge;
}

/* Sets up an io_uring ring and tears it down again, because a kernel with the system call may
 * still refuse it within a container. */
static struct json_object *describe_io(void)
{
    struct json_object *io = json_object_new_object();
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int fd = (int)syscall(__NR_io_uring_setup, 2, &params);
    int error = errno;
    put_bool(io, "io_uring", fd >= 0);
    put_text(io, "io_uring_why_not", fd >= 0 ? "" : strerror(error));
    if (fd >= 0) {
        close(fd);
    }
    return io;
}

static void put_version(struct json_object *object, const char *key, uint32_t version)
{
    char text[32] = "";
    if (version != 0) {
        snprintf(text, sizeof text, "%u.%u", version / 1000, version % 1000 / 10);
    }
    put_text(object, key, text);
}

static struct json_object *describe_gpu(const moe_cuda_device_info *info)
{
    struct json_object *gpu = json_object_new_object();
    char capability[32];
    snprintf(capability, sizeof capability, "%u.%u", info->major, info->minor);
    put_text(gpu, "name", info->name);
    put_text(gpu, "compute_capability", capability);
    put_u64(gpu, "multiprocessors", info->n_multiprocessors);
    put_u64(gpu, "memory_bytes", info->memory_bytes);
    put_text(gpu, "pci", info->pci);
    put_text(gpu, "link", info->link);
    put(gpu, "numa_node", info->numa_node >= 0 ? json_object_new_int(info->numa_node) : NULL);
    if (info->why_not[0] != '\0') {
        put_text(gpu, "why_not", info->why_not);
    }
    return gpu;
}

static struct json_object *describe_gpus(void)
{
    struct json_object *gpus = json_object_new_object();
    struct json_object *devices = json_object_new_array();
    moe_cuda_module_choice cuda = {0};
    moe_error why_none = {""};
    moe_cuda_device_list *list = moe_calloc(1, sizeof *list);
    if (list != NULL && moe_cuda_module_load(&cuda, &why_none) == MOE_OK) {
        if (cuda.module->list(list, &why_none) == MOE_OK) {
            why_none.message[0] = '\0';
        }
        put_version(gpus, "runtime_cuda", list->runtime_version);
        for (uint32_t i = 0; i < list->n; i++) {
            append(devices, describe_gpu(&list->devices[i]));
        }
    }
    free(list);
    put_version(gpus, "driver_cuda", cuda.driver_version);
    put_text(gpus, "module", cuda.file);
    put_text(gpus, "module_why", cuda.why);
    put(gpus, "devices", devices);
    put_text(gpus, "why_none", why_none.message);
    return gpus;
}

static int describe_storage(struct json_object **out, const char *path, moe_error *err)
{
    moe_storage storage;
    MOE_TRY(moe_storage_read(&storage, path, err));
    struct json_object *object = json_object_new_object();
    put_text(object, "path", path);
    put_text(object, "file_system", storage.file_system);
    put_text(object, "mount_point", storage.mount_point);
    put_text(object, "mount_source", storage.mount_source);
    put_text(object, "device", storage.device);
    if (storage.has_device) {
        put_text(object, "device_model", storage.device_model);
        put_u64(object, "device_bytes", storage.device_bytes);
        put_bool(object, "nvme", storage.is_nvme);
        put_bool(object, "rotational", storage.is_rotational);
        put_u64(object, "logical_block_bytes", storage.logical_block_bytes);
        put_u64(object, "physical_block_bytes", storage.physical_block_bytes);
        put_u64(object, "read_ahead_kb", storage.read_ahead_kb);
    }
    put_bool(object, "direct_io", storage.direct_io);
    bool align_known = storage.direct_offset_align != 0;
    put(object, "direct_memory_align_bytes",
        align_known ? json_object_new_uint64(storage.direct_memory_align) : NULL);
    put(object, "direct_offset_align_bytes",
        align_known ? json_object_new_uint64(storage.direct_offset_align) : NULL);
    *out = object;
    return MOE_OK;
}

int moe_machine_describe(const char *model_path, char **json, moe_error *err)
{
    moe_topology topology;
    struct json_object *storage = NULL;
    if (json == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "moe_machine_describe: json must not be NULL");
    }
    *json = NULL;
    int status = moe_topology_read(&topology, err);
    if (status != MOE_OK) {
        return status;
    }
    if (model_path != NULL) {
        status = describe_storage(&storage, model_path, err);
    }
    if (status == MOE_OK) {
        struct json_object *machine = json_object_new_object();
        put(machine, "system", describe_system());
        put(machine, "cpu", describe_cpu(&topology));
        put(machine, "memory", describe_memory());
        put(machine, "huge_pages", describe_huge_pages());
        put(machine, "io", describe_io());
        put(machine, "gpus", describe_gpus());
        put(machine, "storage", storage);
        const int style = JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE;
        const char *text = machine == NULL ? NULL : json_object_to_json_string_ext(machine, style);
        *json = text == NULL ? NULL : moe_strdup(text);
        json_object_put(machine);
        if (*json == NULL) {
            status = moe_fail(err, MOE_ERR_MEMORY, "out of memory describing the machine");
        }
    }
    moe_topology_free(&topology);
    return status;
}
