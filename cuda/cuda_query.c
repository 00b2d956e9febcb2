/* SPDX-License-Identifier: MIT */
/* The GPUs of the machine, and why there is none. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_internal.h"
#include "cuda/cuda_module.h"
#include "module_build.h" /* of the build: MOE_CUDA_CODES */
#include "runtime/base/error.h"
#include "runtime/host/sysfs.h"

/* What the kernels need: asynchronous copies to shared memory. */
#define LEAST_MAJOR 8

/* Whether one of the module's codes, "sm_86" or "compute_90", runs there: machine code within its
 * generation from its own minor number on, portable code from its number on. Codes with a letter
 * behind ("sm_90a") are for one GPU. */
static bool runs_on(const char *code, uint32_t major, uint32_t minor)
{
    const char *digits = code + strcspn(code, "0123456789");
    char *end;
    uint32_t number = (uint32_t)strtoul(digits, &end, 10);
    uint32_t own = 10 * major + minor;
    if (*end == 'a' || *end == 'f') {
        return number == own;
    }
    return code[0] == 's' ? number / 10 == major && number <= own : number <= own;
}

static bool has_code_for(uint32_t major, uint32_t minor)
{
    const char *code = MOE_CUDA_CODES;
    while (*code != '\0' && !runs_on(code, major, minor)) {
        code += strcspn(code, " ");
        code += strspn(code, " ");
    }
    return *code != '\0';
}

static uint32_t attribute(int device, enum cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return value > 0 ? (uint32_t)value : 0;
}

/* What sysfs knows of the slot. It names devices in lower case, CUDA in upper. */
static void describe_slot(int device, moe_cuda_device_info *info)
{
    char speed[40];
    uint64_t width = 0;
    uint64_t node = 0;
    info->numa_node = -1;
    if (cudaDeviceGetPCIBusId(info->pci, (int)sizeof info->pci, device) != cudaSuccess) {
        (void)cudaGetLastError();
        info->pci[0] = '\0';
        return;
    }
    for (char *c = info->pci; *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    if (moe_sysfs_read_u64(&node, "/sys/bus/pci/devices/%s/numa_node", info->pci)) {
        info->numa_node = (int32_t)node;
    }
    if (moe_sysfs_read_line(speed, sizeof speed, "/sys/bus/pci/devices/%s/max_link_speed",
                            info->pci) &&
        moe_sysfs_read_u64(&width, "/sys/bus/pci/devices/%s/max_link_width", info->pci)) {
        snprintf(info->link, sizeof info->link, "%s x%u", speed, (unsigned)width);
    }
}

/* One that cannot even be described does not hide the others. */
static void describe_device(int device, moe_cuda_device_info *info)
{
    struct cudaDeviceProp properties;
    *info = (moe_cuda_device_info){.numa_node = -1};
    cudaError_t code = cudaGetDeviceProperties(&properties, device);
    if (code != cudaSuccess) {
        moe_error why_not;
        (void)moe_cuda_translate(code, "cudaGetDeviceProperties", "looking at it", &why_not);
        snprintf(info->name, sizeof info->name, "unknown GPU");
        snprintf(info->why_not, sizeof info->why_not, "%.*s", (int)sizeof info->why_not - 1,
                 why_not.message);
        return;
    }
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->memory_bytes = properties.totalGlobalMem;
    info->major = attribute(device, cudaDevAttrComputeCapabilityMajor);
    info->minor = attribute(device, cudaDevAttrComputeCapabilityMinor);
    info->n_multiprocessors = attribute(device, cudaDevAttrMultiProcessorCount);
    describe_slot(device, info);
    if (info->major < LEAST_MAJOR) {
        snprintf(info->why_not, sizeof info->why_not,
                 "its compute capability is %u.%u; 8.0 (Ampere) is the least that works",
                 info->major, info->minor);
    } else if (!has_code_for(info->major, info->minor)) {
        snprintf(info->why_not, sizeof info->why_not,
                 "the module has code for " MOE_CUDA_CODES " and none for its compute capability "
                 "%u.%u; build with sm_%u%u in -Dgpu_archs",
                 info->major, info->minor, info->major, info->minor);
    }
}

static int refuse(cudaError_t code, const moe_cuda_device_list *list, moe_error *err)
{
    (void)cudaGetLastError();
    if (list->driver_version == 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "there is no NVIDIA driver (libcuda.so.1 cannot be loaded); install one, "
                        "and in a container start it with access to the GPU");
    }
    if (code == cudaErrorInsufficientDriver) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the NVIDIA driver is too old: it knows CUDA %u.%u, and %u.%u is needed; "
                        "install a newer one",
                        list->driver_version / 1000, list->driver_version % 1000 / 10,
                        list->runtime_version / 1000, list->runtime_version % 1000 / 10);
    }
    if (code == cudaErrorNoDevice || code == cudaSuccess) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the NVIDIA driver has no GPU; CUDA_VISIBLE_DEVICES or the container may "
                        "hide it");
    }
    return moe_cuda_translate(code, "cudaGetDeviceCount", "looking for GPUs", err);
}

int moe_cuda_list(moe_cuda_device_list *out, moe_error *err)
{
    int driver = 0;
    int runtime = 0;
    int n = 0;
    *out = (moe_cuda_device_list){0};
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    out->driver_version = driver > 0 ? (uint32_t)driver : 0;
    out->runtime_version = runtime > 0 ? (uint32_t)runtime : 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n <= 0) {
        return refuse(code, out, err);
    }
    for (int i = 0; i < n && i < (int)MOE_CUDA_MAX_DEVICES; i++) {
        describe_device(i, &out->devices[i]);
        out->n++;
    }
    return MOE_OK;
}
