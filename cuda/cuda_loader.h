/* SPDX-License-Identifier: MIT */
/* Finds the CUDA module: moe_cuda.so, else moe_cuda12.so, the first whose CUDA the driver knows.
 * The loader starts at the folder of the object that holds this code: the library, or the program
 * that it is linked into. It looks, in this order: in this folder; in cuda/module/ below it (a
 * build folder); in moe-offload/ below it (beside an installed library); and in the installation's
 * library folder, found relative to the folder of programs. It does not look at the environment and
 * tries no other name. */
#ifndef MOE_CUDA_LOADER_H
#define MOE_CUDA_LOADER_H

#include "cuda/cuda_module.h"
#include "runtime/device/cards.h"

typedef struct moe_cuda_module_choice {
    const moe_cuda_module *module; /* NULL: none */
    uint32_t driver_version;       /* as of moe_cuda_module; 0: no driver, or no module to ask */
    char file[32];                 /* its name, without folder */
    char why[256];                 /* why it is not moe_cuda.so; empty when it is */
} moe_cuda_module_choice;

/* Loads the module. Without a driver it takes the first module that it finds.
 * MOE_ERR_UNSUPPORTED, with the reason and a remedy: no module was found, none can be loaded, it is
 * of another build, or the driver is too old for each. A module stays loaded until the process
 * ends, because threads and handlers of CUDA's runtime still use it; loading it again costs
 * nothing. Any thread. */
int moe_cuda_module_load(moe_cuda_module_choice *out, moe_error *err);
/* Like moe_cuda_module_load(), but starts from `folder`, whose name ends with a slash. */
int moe_cuda_module_load_from(moe_cuda_module_choice *out, const char *folder, moe_error *err);

/* Whether the driver shows an NVIDIA GPU, usable or not. */
bool moe_cuda_gpu_seen(void);

/* "cuda" is 0, "cuda:3" is 3, "cuda:1,0" is 1 and 0: different GPUs, at most MOE_MAX_CARDS; false
 * for any other text. */
bool moe_cuda_parse_name(const char *text, uint32_t indices[MOE_MAX_CARDS], uint32_t *n);

#endif
