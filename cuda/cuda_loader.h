/* SPDX-License-Identifier: MIT */
/* Finds the CUDA module and keeps it while it is used.
 *
 * Looked for, in this order, from the folder of the object that holds this code (the library, or
 * the program that it is linked into): there, in cuda/module/ below it (a build folder), in
 * moe-offload/ below it (beside an installed library), and in the installation's library folder as
 * seen from its folder of programs. Nothing in the environment is looked at, and no other name is
 * tried. */
#ifndef MOE_CUDA_LOADER_H
#define MOE_CUDA_LOADER_H

#include "cuda/cuda_module.h"

typedef struct moe_cuda_library {
    void *handle;
    const moe_cuda_module *module;
} moe_cuda_library;

/* MOE_ERR_UNSUPPORTED says why there is none: not found, cannot be loaded, of another build. */
int moe_cuda_library_load(moe_cuda_library *library, moe_error *err);
/* After every device of it is closed. Nothing for one that was not loaded. */
void moe_cuda_library_unload(moe_cuda_library *library);

/* Whether the machine seems to have an NVIDIA GPU, usable or not: its driver shows one. */
bool moe_cuda_gpu_seen(void);

/* "cuda" is 0, "cuda:3" is 3; false for any other text. */
bool moe_cuda_parse_name(const char *text, uint32_t *index);

#endif
