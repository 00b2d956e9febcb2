/* SPDX-License-Identifier: MIT */
/* The interface between the library and the CUDA module.
 *
 * Everything that needs CUDA is in a separate shared object. The library therefore starts without a
 * driver and builds without a CUDA compiler. The module has one symbol, MOE_CUDA_MODULE_ENTRY, a
 * moe_cuda_module_fn; cuda_loader.h finds it. Both sides are built together: the library refuses a
 * module whose number, size and version differ from its own. */
#ifndef MOE_CUDA_MODULE_H
#define MOE_CUDA_MODULE_H

#include "runtime/device/device.h"

/* Increases with every change to this file or to the device contract. */
#define MOE_CUDA_MODULE_ABI   21u
#define MOE_CUDA_MODULE_ENTRY "moe_cuda_module_entry"
#define MOE_CUDA_MODULE_FILE  "moe_cuda.so"
/* The module for drivers that only know CUDA 12: with them a moe_cuda.so of CUDA 13 does not run.
 */
#define MOE_CUDA12_MODULE_FILE "moe_cuda12.so"
#define MOE_CUDA_MAX_DEVICES   16u

typedef struct moe_cuda_device_info {
    char name[128];
    char pci[32];   /* "0000:17:00.0", or empty */
    char link[64];  /* "32.0 GT/s PCIe x16", or empty: not known */
    uint32_t major; /* compute capability */
    uint32_t minor;
    uint32_t n_multiprocessors;
    int32_t numa_node; /* -1: not known */
    uint64_t memory_bytes;
    char why_not[256]; /* why it cannot be used; empty when it can */
} moe_cuda_device_info;

typedef struct moe_cuda_device_list {
    uint32_t driver_version; /* 1000 * major + 10 * minor: the newest CUDA that the driver knows */
    uint32_t runtime_version;
    uint32_t n;
    moe_cuda_device_info devices[MOE_CUDA_MAX_DEVICES];
} moe_cuda_device_list;

typedef struct moe_cuda_device_options {
    uint32_t index; /* the GPU's number in list() */
    /* Lets cuBLAS multiply float weights that many rows share; not exact. MOE_ERR_UNSUPPORTED if
     * cuBLAS cannot be loaded. */
    bool blas_prefill;
    /* Attention has the bits of the CPU. Otherwise the matrix units compute it where there is a
     * kernel for the layer (moe_device_ops.own_attention). */
    bool exact_attention;
} moe_cuda_device_options;

typedef struct moe_cuda_module {
    uint32_t abi;        /* MOE_CUDA_MODULE_ABI */
    uint32_t ops_bytes;  /* sizeof(moe_device_ops) */
    const char *version; /* MOE_VERSION of <moe/version.h> */
    /* The version of the CUDA toolkit that built the module, 1000 * major + 10 * minor. The driver
     * must know CUDA of this major number; the minor number does not matter. */
    uint32_t cuda_version;
    /* The newest CUDA that the driver knows, in the same form; 0: no driver. Any thread. */
    uint32_t (*driver_version)(void);
    /* Lists the GPUs. MOE_ERR_UNSUPPORTED, with the reason and a remedy, if there is no driver or
     * no device, or the driver is too old. Fills in the versions that are known. Any thread. */
    int (*list)(moe_cuda_device_list *out, moe_error *err);
    int (*open)(moe_device **out, const moe_cuda_device_options *options, moe_error *err);
} moe_cuda_module;

typedef const moe_cuda_module *(*moe_cuda_module_fn)(void);

#endif
