/* SPDX-License-Identifier: MIT */
/* Stands in for what the module's build writes: the codes that the module would have, and the
 * folder of CUDA's libraries. */
#ifndef MOE_EMULATION_MODULE_BUILD_H
#define MOE_EMULATION_MODULE_BUILD_H

#define MOE_CUDA_CODES     "sm_86 sm_90 compute_100"
#define MOE_CUDA_LIBRARIES "/nowhere"

#endif
