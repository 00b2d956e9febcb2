/* SPDX-License-Identifier: MIT */
/* The device contract's suite on a real GPU, for gpu_suite.sh. */
#include <stddef.h>

#include "cuda/cuda_module.h"
#include "device_fixture.h"

const moe_cuda_module *moe_cuda_module_entry(void);

const char *device_spec_at(size_t n)
{
    static const char *const specs[] = {"cpu", "cuda:0"};
    return n < sizeof specs / sizeof specs[0] ? specs[n] : NULL;
}

int open_other_device(moe_device **out, const char *spec, moe_error *err)
{
    (void)spec;
    const moe_cuda_device_options options = {.exact_attention = true};
    return moe_cuda_module_entry()->open(out, &options, err);
}
