/* SPDX-License-Identifier: MIT */
/* A module that opens nothing, for test_cuda_loader.c. MODULE_CUDA: its CUDA; MODULE_ABI: its
 * interface. The driver that it finds is the environment's. */
#include <stdlib.h>

#include <moe/version.h>

#include "cuda/cuda_module.h"

static uint32_t driver_version(void)
{
    const char *text = getenv("DOUBLE_DRIVER");
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

static const moe_cuda_module module = {.abi = MODULE_ABI,
                                       .ops_bytes = sizeof(moe_device_ops),
                                       .version = MOE_VERSION_TEXT,
                                       .cuda_version = MODULE_CUDA,
                                       .driver_version = driver_version};

__attribute__((visibility("default"))) const moe_cuda_module *moe_cuda_module_entry(void);

const moe_cuda_module *moe_cuda_module_entry(void)
{
    return &module;
}
