/* SPDX-License-Identifier: MIT */
/* Finds the CUDA module.
 *
 * Looked for, in this order, from the folder of the object that holds this code (the library, or
 * the program that it is linked into): there, in cuda/module/ below it (a build folder), in
 * moe-offload/ below it (beside an installed library), and in the installation's library folder as
 * seen from its folder of programs. Nothing in the environment is looked at, and no other name is
 * tried. */
#ifndef MOE_CUDA_LOADER_H
#define MOE_CUDA_LOADER_H

#include "cuda/cuda_module.h"

/* MOE_ERR_UNSUPPORTED says why there is no module: not found, cannot be loaded, or of another
 * build. A module stays loaded until the process ends, because CUDA's runtime leaves threads and
 * handlers in it; loading it again costs nothing. Any thread. */
int moe_cuda_module_load(const moe_cuda_module **out, moe_error *err);

/* Whether the driver shows an NVIDIA GPU, usable or not. */
bool moe_cuda_gpu_seen(void);

/* "cuda" is 0, "cuda:3" is 3; false for any other text. */
bool moe_cuda_parse_name(const char *text, uint32_t *index);

#endif
