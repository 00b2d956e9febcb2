/* SPDX-License-Identifier: MIT */
/* Stands in for the module's: what a real one would be said to have code for. */
#ifndef MOE_EMULATION_MODULE_CODES_H
#define MOE_EMULATION_MODULE_CODES_H

#define MOE_CUDA_CODES "sm_86 sm_90 compute_100"

#endif
