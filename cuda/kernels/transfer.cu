// SPDX-License-Identifier: MIT
/* Copies small arrays between page-locked memory of the host and device memory. A copy engine takes
 * the copies of all streams in the order in which they were queued: a few hundred bytes that the
 * next kernel needs would wait behind megabytes of experts. A kernel waits only for its own stream.
 *
 * Experts that a pass fetches over the link are copied to slots of the device in the same way,
 * because only the device knows which experts they are, and the following kernels need them.
 *
 * The link answers after a microsecond or more, so its speed depends on how many bytes are
 * requested at once: a thread loads all of its units before it stores the first. */
#include "cuda/kernels/transfer_launch.h"
#include "cuda/kernels/device_common.h"

#define THREADS 256u
#define UNITS   4u /* units that a thread copies at once */

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

/* ---- Experts ---- */

/* Divides an expert's parts into pieces of up to THREADS * UNITS units, the first part first. */
typedef struct fetch_pieces {
    size_t bytes[3];
    uint32_t n[3];
    uint32_t n_expert; /* of all parts */
} fetch_pieces;

/* Copies a piece of a part. Piece 0 also copies the bytes behind the part's last whole unit. */
__device__ static inline void copy_piece(uint8_t *dst, const uint8_t *src, size_t bytes,
                                         uint32_t piece)
{
    const unit16 *from = (const unit16 *)src;
    unit16 *to = (unit16 *)dst;
    const size_t n = bytes / sizeof(unit16);
    const size_t first = (size_t)piece * THREADS * UNITS + threadIdx.x;
    unit16 units[UNITS];
#pragma unroll
    for (uint32_t u = 0; u < UNITS; u++)
        if (first + u * THREADS < n)
            units[u] = from[first + u * THREADS];
#pragma unroll
    for (uint32_t u = 0; u < UNITS; u++)
        if (first + u * THREADS < n)
            to[first + u * THREADS] = units[u];
    const size_t last = n * sizeof(unit16) + threadIdx.x;
    if (piece == 0 && last < bytes)
        dst[last] = src[last];
}

__global__ __launch_bounds__(THREADS) void moe_fetch(moe_cuda_fetches fetches, fetch_pieces pieces)
{
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    const uint32_t n = *fetches.n * pieces.n_expert;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const moe_cuda_fetch *fetch = &fetches.list[i / pieces.n_expert];
        uint32_t piece = i % pieces.n_expert;
        uint32_t part = 0;
        while (piece >= pieces.n[part])
            piece -= pieces.n[part++];
        copy_piece((uint8_t *)fetch->to.parts[part], (const uint8_t *)fetch->from.parts[part],
                   pieces.bytes[part], piece);
    }
}

void moe_cuda_fetch_experts(moe_cuda_stream stream, const moe_cuda_fetches *fetches,
                            uint32_t n_most, const size_t bytes[3], uint32_t n_multiprocessors)
{
    fetch_pieces pieces = {};
    for (int p = 0; p < 3; p++) {
        const size_t piece_bytes = THREADS * UNITS * sizeof(unit16);
        pieces.bytes[p] = bytes[p];
        pieces.n[p] = (uint32_t)((bytes[p] + piece_bytes - 1) / piece_bytes);
        pieces.n_expert += pieces.n[p];
    }
    const size_t n = (size_t)n_most * pieces.n_expert;
    if (n > 0)
        MOE_LAUNCH_EARLY(moe_fetch, (uint32_t)(n < n_multiprocessors ? n : n_multiprocessors),
                         THREADS, 0, stream, *fetches, pieces);
}
