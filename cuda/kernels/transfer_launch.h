/* SPDX-License-Identifier: MIT */
/* Copies of small arrays by a kernel: in their stream's order, and in no queue of the link. */
#ifndef MOE_CUDA_TRANSFER_LAUNCH_H
#define MOE_CUDA_TRANSFER_LAUNCH_H

#include "cuda/kernels/vector_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Up to here a kernel copies as soon as a copy engine would, or sooner. */
#define MOE_CUDA_TRANSFER_MOST ((size_t)1 << 20)

/* Both are device memory, or memory of the host that is page-locked and has one address for both.
 * Any alignment; 16 is fastest. The host sees the bytes when it has waited for the stream. */
void moe_cuda_transfer(moe_cuda_stream stream, void *dst, const void *src, size_t bytes);

/* An expert on its way from host memory to a slot of the device. */
typedef struct moe_cuda_fetch {
    moe_expert_address from, to;
} moe_cuda_fetch;

/* Those of a layer, in device memory. */
typedef struct moe_cuda_fetches {
    moe_cuda_fetch *list;
    uint32_t *n;
} moe_cuda_fetches;

/* Copies the parts of up to n_most experts. bytes: of each part, 0: none. Parts begin at multiples
 * of 16 bytes. */
void moe_cuda_fetch_experts(moe_cuda_stream stream, const moe_cuda_fetches *fetches,
                            uint32_t n_most, const size_t bytes[3], uint32_t n_multiprocessors);

#ifdef __cplusplus
}
#endif

#endif
