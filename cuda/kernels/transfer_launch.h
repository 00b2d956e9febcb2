/* SPDX-License-Identifier: MIT */
/* A kernel that copies small arrays, in the order of its stream and outside the link's queues. */
#ifndef MOE_CUDA_TRANSFER_LAUNCH_H
#define MOE_CUDA_TRANSFER_LAUNCH_H

#include "cuda/kernels/vector_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Up to this size a kernel's copy ends no later than a copy engine's. */
#define MOE_CUDA_TRANSFER_MOST ((size_t)1 << 20)

/* Source and target are each device memory, or page-locked host memory that has one address for
 * host and device. They may have any alignment; 16 is fastest. The host sees the bytes after it has
 * waited for the stream. */
void moe_cuda_transfer(moe_cuda_stream stream, void *dst, const void *src, size_t bytes);

/* An expert on its way from host memory to a slot of the device. */
typedef struct moe_cuda_fetch {
    moe_expert_address from, to;
} moe_cuda_fetch;

/* The fetches of a layer, in device memory. */
typedef struct moe_cuda_fetches {
    moe_cuda_fetch *list;
    uint32_t *n;
} moe_cuda_fetches;

/* Copies the parts of up to n_most experts. bytes: the size of each part; 0: there is no such part.
 * Parts begin at multiples of 16 bytes. */
void moe_cuda_fetch_experts(moe_cuda_stream stream, const moe_cuda_fetches *fetches,
                            uint32_t n_most, const size_t bytes[3], uint32_t n_multiprocessors);

#ifdef __cplusplus
}
#endif

#endif
