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

#ifdef __cplusplus
}
#endif

#endif
