/* SPDX-License-Identifier: MIT */
/* The device contract's suite on the emulated GPU, compared with the CPU. Also on the second of two
 * GPUs: a call for it must not go to the first. */
#include <stddef.h>
#include <string.h>

#include "cuda/cuda_internal.h"
#include "device_fixture.h"
#include "emulation/fake_runtime.h"

const char *device_spec_at(size_t n)
{
    static const char *const specs[] = {"cpu", "cuda:0", "cuda:1"};
    return n < sizeof specs / sizeof specs[0] ? specs[n] : NULL;
}

int open_other_device(moe_device **out, const char *spec, moe_error *err)
{
    fake_machine machine;
    fake_machine_init(&machine);
    machine.n_devices = 2;
    machine.nap_us = 200;
    fake_machine_set(&machine);
    moe_cuda_device_options options = {.index = strcmp(spec, "cuda:1") == 0,
                                       .exact_attention = true};
    return moe_cuda_device_open(out, &options, err);
}
