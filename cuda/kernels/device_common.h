/* SPDX-License-Identifier: MIT */
/* What every kernel source begins with: the language of kernels, their launch, and bits.
 *
 * The same sources also compile for the host under tests/cuda/emulation, whose headers then stand
 * in for CUDA's. A source therefore launches by MOE_LAUNCH, has its variable shared memory by
 * MOE_DYNAMIC_SHARED, and uses no more of CUDA than those headers offer. */
#ifndef MOE_CUDA_DEVICE_COMMON_H
#define MOE_CUDA_DEVICE_COMMON_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Not under the emulation, which has launches of its own. */
#ifndef MOE_LAUNCH
/* A kernel of several template arguments stands in parentheses. */
#define MOE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
/* With up to 99 KiB of shared memory, for more than 48 of which a kernel has to ask. */
#define MOE_LAUNCH_LARGE(kernel, grid, block, shared_bytes, stream, ...)                           \
    do {                                                                                           \
        if ((shared_bytes) > 48u << 10)                                                            \
            cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,            \
                                 (int)(shared_bytes));                                             \
        MOE_LAUNCH(kernel, grid, block, shared_bytes, stream, __VA_ARGS__);                        \
    } while (0)
/* The block's variable shared memory as an array of `type`. Once a kernel. */
#define MOE_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
/* Has the line at `address` brought from memory to the second-level cache. */
#define MOE_PREFETCH(address) asm volatile("prefetch.global.L2 [%0];" ::"l"(address))
#endif

/* Begins the definition of a table in the device's memory. */
#ifndef MOE_DEVICE_TABLE
#define MOE_DEVICE_TABLE static __device__ const
#endif

#define MOE_INFINITY __int_as_float(0x7f800000)
#define MOE_NAN      __int_as_float(0x7fc00000)

__device__ static inline float moe_device_float_of(uint32_t bits)
{
    return __uint_as_float(bits);
}

__device__ static inline uint32_t moe_device_bits_of(float value)
{
    return __float_as_uint(value);
}

/* Both as the F16C instructions do, but for the payload of a NaN. */
__device__ static inline float moe_device_half_to_float(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

__device__ static inline uint16_t moe_device_float_to_half(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

#endif
