/* SPDX-License-Identifier: MIT */
/* What tests ask of the stand-in for CUDA's runtime (fake_runtime.cpp), and what they can make it
 * do. One at a time; with no device open. */
#ifndef MOE_EMULATION_FAKE_RUNTIME_H
#define MOE_EMULATION_FAKE_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_machine {
    int n_devices;
    int major, minor;
    int driver_version; /* 0: no driver */
    size_t memory_bytes;
    /* The n-th call (from 0) of this function fails with this code; NULL: none does. "kernel" is
     * the launch, "captured kernel" that of a stream that captures, "fault" a kernel that was
     * launched well and goes wrong when it runs. */
    const char *fail_call;
    uint32_t fail_after;
    cudaError_t fail_code;
    /* From then on every call fails with the code, as after a kernel's fault. */
    bool fail_for_good;
    /* All such calls from the n-th on fail, and nothing else. */
    bool fail_each;
    /* Streams stop for up to so long before each thing they do, the one in shorter naps than the
     * other, so that what relies on luck fails. 0: never. */
    uint32_t nap_us;
    int n_multiprocessors;
    uint32_t kernel_us; /* every kernel takes so much longer */
    /* The first copies of 1 MiB or more take so much longer, as over a link that sleeps. */
    uint32_t n_slow_copies, slow_copy_us;
} fake_machine;

/* One device of compute capability 9.0 with 1 GiB and two multiprocessors, a driver, no failures.
 */
void fake_machine_init(fake_machine *machine);
void fake_machine_set(const fake_machine *machine);

typedef struct fake_usage {
    uint64_t device_blocks, host_blocks, streams, events, blas_handles, graphs; /* alive */
    uint64_t device_bytes;
    uint64_t bytes_of[4];          /* device_bytes, by device */
    uint64_t device_rounded_bytes; /* what a GPU would take: in whole 2 MiB above 1 MiB */
    /* Since fake_machine_set(): kernels that ran, those of graphs among them; kernels launched one
     * by one; waits for a whole stream. */
    uint64_t n_kernels, n_launches, n_copies, n_waits, n_products, n_graphs, n_failures;
    uint64_t n_allocations; /* of device memory */
    uint64_t n_early; /* of n_kernels: launched so that they may begin early; never set to 0 */
} fake_usage;

void fake_get_usage(fake_usage *usage);

#ifdef __cplusplus
}
#endif

#endif
