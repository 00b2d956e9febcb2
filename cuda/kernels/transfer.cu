// SPDX-License-Identifier: MIT
/* Small arrays between page-locked memory of the host and the device's. A copy engine takes its
 * copies in the order in which they were asked for, whatever their stream: a few hundred bytes that
 * the next kernel needs would wait behind megabytes of experts. A kernel waits for nothing but its
 * own stream.
 *
 * What counts is how many bytes are on their way at once, since the link answers after a
 * microsecond or more: a thread asks for all of its units before it stores the first. */
#include "cuda/kernels/transfer_launch.h"
#include "cuda/kernels/device_common.h"

#define THREADS 256u
#define UNITS   4u /* a thread's */

struct alignas(16) unit16 {
    uint32_t words[4];
};

template <typename UNIT>
__global__ __launch_bounds__(THREADS) void moe_transfer(UNIT *dst, const UNIT *src, size_t n)
{
    size_t first = (size_t)blockIdx.x * THREADS * UNITS + threadIdx.x;
    UNIT units[UNITS];
#pragma unroll
    for (uint32_t u = 0; u < UNITS; u++)
        if (first + u * THREADS < n)
            units[u] = src[first + u * THREADS];
#pragma unroll
    for (uint32_t u = 0; u < UNITS; u++)
        if (first + u * THREADS < n)
            dst[first + u * THREADS] = units[u];
}

template <typename UNIT>
static void launch(moe_cuda_stream stream, void *dst, const void *src, size_t bytes)
{
    size_t n = bytes / sizeof(UNIT);
    MOE_LAUNCH(moe_transfer<UNIT>, (uint32_t)((n + THREADS * UNITS - 1) / (THREADS * UNITS)),
               THREADS, 0, stream, (UNIT *)dst, (const UNIT *)src, n);
}

void moe_cuda_transfer(moe_cuda_stream stream, void *dst, const void *src, size_t bytes)
{
    size_t bits = (size_t)(uintptr_t)dst | (size_t)(uintptr_t)src | bytes;
    if (bytes == 0)
        return;
    if (bits % sizeof(unit16) == 0)
        launch<unit16>(stream, dst, src, bytes);
    else if (bits % sizeof(uint32_t) == 0)
        launch<uint32_t>(stream, dst, src, bytes);
    else
        launch<uint8_t>(stream, dst, src, bytes);
}
