/* SPDX-License-Identifier: MIT */
/* The stand-in for CUDA's runtime (emulation/fake_runtime.h) that is inside the module of kernels
 * which an engine loads from beside the program. */
#ifndef MOE_TESTS_FAKE_MODULE_H
#define MOE_TESTS_FAKE_MODULE_H

#include "emulation/fake_runtime.h"

typedef struct fake_module {
    void (*init)(fake_machine *machine);
    void (*set)(const fake_machine *machine);
    void (*usage)(fake_usage *usage);
} fake_module;

/* Loads the module, or fails the test. */
void find_fake_module(fake_module *fake);
/* No memory, stream, event, handle or graph is alive. */
void assert_nothing_left(const fake_module *fake);

#endif
