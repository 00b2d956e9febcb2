/* SPDX-License-Identifier: MIT */
/* The model that fuzzed sidecars are of. */
#ifndef MOE_TESTS_FUZZ_SIDECAR_SHAPE_H
#define MOE_TESTS_FUZZ_SIDECAR_SHAPE_H

#include "runtime/sidecar/calibration.h"

enum { FUZZ_SIDECAR_LAYERS = 2, FUZZ_SIDECAR_EXPERTS = 4 };

static const moe_calibration_shape fuzz_sidecar_shape = {.fingerprint = 0x1234567890abcdef,
                                                         .n_layer = FUZZ_SIDECAR_LAYERS,
                                                         .n_expert = FUZZ_SIDECAR_EXPERTS,
                                                         .n_expert_used = 2,
                                                         .n_embd = 3};

#endif
