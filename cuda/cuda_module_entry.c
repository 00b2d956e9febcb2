/* SPDX-License-Identifier: MIT */
/* The module's one symbol. */
#include "cuda/cuda_module.h"

#include <moe/version.h>

#include "cuda/cuda_internal.h"

static const moe_cuda_module module = {
    .abi = MOE_CUDA_MODULE_ABI,
    .ops_bytes = sizeof(moe_device_ops),
    .version = MOE_VERSION_TEXT,
    .cuda_version = CUDART_VERSION,
    .driver_version = moe_cuda_driver_version,
    .list = moe_cuda_list,
    .open = moe_cuda_device_open,
};

__attribute__((visibility("default"))) const moe_cuda_module *moe_cuda_module_entry(void);

const moe_cuda_module *moe_cuda_module_entry(void)
{
    return &module;
}
