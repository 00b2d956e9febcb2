/* SPDX-License-Identifier: MIT */
/* Every kernel source includes this first: macros to write and launch kernels, and conversions of
 * bits. The same sources also compile for the host with the headers of tests/cuda/emulation in
 * place of CUDA's. So a source launches with MOE_LAUNCH, declares variable shared memory with
 * MOE_DYNAMIC_SHARED, and uses only what those headers offer of CUDA. */
#ifndef MOE_CUDA_DEVICE_COMMON_H
#define MOE_CUDA_DEVICE_COMMON_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The emulation defines its own launches. */
#ifndef MOE_LAUNCH
/* Put a kernel with several template arguments in parentheses. */
#define MOE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
/* Launches a kernel that may begin while the kernels ahead of it in its stream still run
 * (programmatic dependent launch). That works in captured graphs, from sm_90 on; elsewhere this is
 * MOE_LAUNCH. The kernel must begin with MOE_BEGIN_EARLY. Every thread must call
 * MOE_WAIT_FOR_STREAM before it uses memory that a kernel may have written, and before it returns.
 * (If no thread of a kernel waited, the next kernel would not wait for the kernels ahead of both.)
 * Before the wait a kernel may only copy weights to shared memory, because compilers move plain
 * loads behind the wait. */
#define MOE_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, ...)                           \
    moe_launch_early((kernel), (grid), (block), (shared_bytes), (stream), __VA_ARGS__)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* Lets the next kernel of the stream begin, once all blocks of this one are under way. */
#define MOE_BEGIN_EARLY() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
/* Waits until the kernels ahead have ended and their writes are visible. */
#define MOE_WAIT_FOR_STREAM() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define MOE_BEGIN_EARLY()     ((void)0)
#define MOE_WAIT_FOR_STREAM() ((void)0)
#endif

/* Whether the stream is captured for a graph, and both the driver and the kernel's own code support
 * early launches. (A GPU may run portable code that was made for an older GPU.) */
static inline bool moe_launches_early(cudaStream_t stream, const void *kernel)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaFuncAttributes code = {};
    int driver = 0;
    return CUDART_VERSION >= 12030 && cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
           capture == cudaStreamCaptureStatusActive &&
           cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030 &&
           cudaFuncGetAttributes(&code, kernel) == cudaSuccess && code.ptxVersion >= 90 &&
           code.binaryVersion >= 90;
}

template <typename... PARAMETERS, typename... ARGUMENTS>
static inline void moe_launch_early(void (*kernel)(PARAMETERS...), dim3 grid, dim3 block,
                                    size_t shared_bytes, cudaStream_t stream,
                                    ARGUMENTS... arguments)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = moe_launches_early(stream, (const void *)kernel) ? 1 : 0;
    /* A failure also shows in cudaGetLastError(). */
    (void)cudaLaunchKernelEx(&config, kernel, arguments...);
}

/* Launches with up to 99 KiB of shared memory. Kernels get more than 48 KiB only on request. */
#define MOE_LAUNCH_LARGE(kernel, grid, block, shared_bytes, stream, ...)                           \
    do {                                                                                           \
        if ((shared_bytes) > 48u << 10)                                                            \
            cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,            \
                                 (int)(shared_bytes));                                             \
        MOE_LAUNCH(kernel, grid, block, shared_bytes, stream, __VA_ARGS__);                        \
    } while (0)
/* Declares the block's variable shared memory as an array of `type`. Once in a kernel. */
#define MOE_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
/* Prefetches the line at `address` from memory to the second-level cache. */
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

/* This function and the next convert as the F16C instructions do, except for the payload of a NaN.
 */
__device__ static inline float moe_device_half_to_float(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

__device__ static inline uint16_t moe_device_float_to_half(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

#endif
