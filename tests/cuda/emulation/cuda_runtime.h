/* SPDX-License-Identifier: MIT */
/* Stands in for CUDA's header of this name: as much of the language as the kernels use.
 *
 * A launch runs its blocks one after the other. A block's threads are fibers, each with a stack of
 * its own (emulation.cpp): a fiber runs until it waits, at a barrier of the block or for the other
 * threads of its warp, and goes on when all have come. What the hardware leaves undefined ends the
 * test: a barrier that some threads never reach, a shuffle without the whole warp, more shared
 * memory than a block has without asking. Variable shared memory begins as NaNs. Races are found
 * where the kernels' sources are compiled for it (races.cpp).
 *
 * What it cannot show: what a compiler for the device makes of the arithmetic, speed. */
#ifndef MOE_EMULATION_CUDA_RUNTIME_H
#define MOE_EMULATION_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <string>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "cuda_runtime_api.h"

#define __device__
#define __host__
#define __global__
/* Blocks run one at a time. Where races are looked for, all such variables lie together. */
#ifndef MOE_SHARED_SECTION
#define MOE_SHARED_SECTION
#endif
#define __shared__ static MOE_SHARED_SECTION
#define __launch_bounds__(...)
/* Such tables lie together, so that they are told from the program's own constants. */
#define MOE_DEVICE_TABLE static const __attribute__((section("moe_device_tables")))

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

namespace emulation
{
/* Where the running thread is, and of how many. */
extern struct place {
    uint3 thread, block;
    dim3 block_size, grid_size;
} here;

/* A kernel with its arguments. */
struct bound_kernel {
    std::function<void()> thread;
    const char *name;                   /* of a type that has the kernel in its name */
    std::vector<std::string> arguments; /* their bytes */
    bool early = false;                 /* it may begin before those ahead have ended */
};

void launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
            const bound_kernel &kernel, size_t max_shared = 48u << 10);
/* Who runs kernels in their streams' order (fake_runtime.cpp); NULL: launch() itself, at once. */
extern void (*defer)(cudaStream_t stream, std::function<void()> kernel);
/* The thread has its arguments. */
void begin_kernel(void);
template <auto *KERNEL> struct named {
};
template <auto *KERNEL, typename... Parameters, typename... Arguments>
bound_kernel bind_to(void (*)(Parameters...), Arguments... arguments)
{
    std::tuple<Parameters...> own(arguments...);
    auto bytes = [](const auto &...all) {
        return std::vector<std::string>{std::string((const char *)&all, sizeof(all))...};
    };
    return {[=] {
                std::tuple<Parameters...> of_thread = own;
                begin_kernel();
                std::apply(KERNEL, of_thread);
            },
            typeid(named<KERNEL>).name(), std::apply(bytes, own), false};
}
template <auto *KERNEL, typename... Arguments> bound_kernel bind(Arguments... arguments)
{
    return bind_to<KERNEL>(KERNEL, arguments...);
}

static inline bound_kernel early(bound_kernel kernel)
{
    kernel.early = true;
    return kernel;
}
/* The thread has waited for the kernels ahead. */
void wait_for_stream(void);

void *shared_memory(void);
/* Returns when all threads of the block have called it. */
void block_barrier(void);
/* ... all threads of the warp. */
void warp_barrier(void);
/* The value that the warp's thread `lane ^ mask` gave. threads: those that take part, all of them.
 */
uint32_t exchange(uint32_t threads, uint32_t value, uint32_t mask);
/* What was there before. */
uint32_t atomic_or(uint32_t *word, uint32_t bits);
uint32_t atomic_add(uint32_t *word, uint32_t value);
uint32_t atomic_cas(uint32_t *word, uint32_t expected, uint32_t value);
/* The thread's four elements of c + the product of 16 rows of k and k of 8 columns of signed bytes,
 * of which it gives k / 8 and k / 16 words: cuda/kernels/matrix_units.cuh. */
void multiply(unsigned k, const uint32_t *a, const uint32_t *b, int c, int *out);
/* Adds to the thread's four elements of c the product of 16 rows of 16 and 16 of 8 columns of
 * halves, one after the other, and loads four matrices of 8 x 8 halves from shared memory:
 * cuda/kernels/half_units.cuh. The hardware's order of a sum is its own. */
void multiply_halves(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void load_matrices(uint32_t *out, const void *row, bool exchanged);
} // namespace emulation

#define threadIdx (emulation::here.thread)
#define blockIdx  (emulation::here.block)
#define blockDim  (emulation::here.block_size)
#define gridDim   (emulation::here.grid_size)

/* The arguments are copied when the launch is asked for, whenever it runs. */
#define MOE_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    emulation::launch((stream), (grid), (block), (shared_bytes),                                   \
                      emulation::bind<&kernel>(__VA_ARGS__))
/* Every such launch must keep the rules, whether or not it is captured. */
#define MOE_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, ...)                           \
    emulation::launch((stream), (grid), (block), (shared_bytes),                                   \
                      emulation::early(emulation::bind<&kernel>(__VA_ARGS__)))
#define MOE_BEGIN_EARLY()     ((void)0)
#define MOE_WAIT_FOR_STREAM() emulation::wait_for_stream()
/* What all architectures give a block that asks. */
#define MOE_LAUNCH_LARGE(kernel, grid, block, shared_bytes, stream, ...)                           \
    emulation::launch((stream), (grid), (block), (shared_bytes),                                   \
                      emulation::bind<&kernel>(__VA_ARGS__), 99u << 10)
#define MOE_MULTIPLY_K32(out, a0, a1, a2, a3, b0, b1, c)                                           \
    do {                                                                                           \
        const uint32_t a_words[] = {a0, a1, a2, a3}, b_words[] = {b0, b1};                         \
        emulation::multiply(32, a_words, b_words, c, out);                                         \
    } while (0)
#define MOE_MULTIPLY_K16(out, a0, a1, b0, c)                                                       \
    do {                                                                                           \
        const uint32_t a_words[] = {a0, a1}, b_words[] = {b0};                                     \
        emulation::multiply(16, a_words, b_words, c, out);                                         \
    } while (0)
#define MOE_MULTIPLY_HALVES(c, a, b0, b1) emulation::multiply_halves((c), (a), (b0), (b1))
#define MOE_LOAD_MATRICES(out, row)       emulation::load_matrices((out), (row), false)
#define MOE_LOAD_COLUMNS(out, row)        emulation::load_matrices((out), (row), true)
#define MOE_PACK_HALVES(out, low, high)                                                            \
    ((out) = (uint32_t)__half_as_ushort(__float2half_rn(high)) << 16 |                             \
             __half_as_ushort(__float2half_rn(low)))
#define MOE_DYNAMIC_SHARED(type, name) type *name = (type *)emulation::shared_memory()
#define MOE_PREFETCH(address)          ((void)(address))

static inline void __syncthreads(void)
{
    emulation::block_barrier();
}

static inline void __syncwarp(void)
{
    emulation::warp_barrier();
}

static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float __int_as_float(int bits)
{
    return __uint_as_float((uint32_t)bits);
}

static inline uint32_t __shfl_xor_sync(uint32_t threads, uint32_t value, int mask)
{
    return emulation::exchange(threads, value, (uint32_t)mask);
}

static inline float __shfl_xor_sync(uint32_t threads, float value, int mask)
{
    return __uint_as_float(emulation::exchange(threads, __float_as_uint(value), (uint32_t)mask));
}

/* c + the products of four signed bytes */
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int8_t)((uint32_t)a >> i) * (int8_t)((uint32_t)b >> i);
    return c;
}

/* The bytes of y:x that the lower four nibbles of `select` name; a nibble's upper bit asks for the
 * byte's sign instead. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t nibble = select >> 4 * i & 15;
        uint32_t byte = (uint32_t)(bytes >> (nibble & 7) * 8) & 255;
        out |= ((nibble & 8) != 0 ? (byte >> 7) * 255u : byte) << 8 * i;
    }
    return out;
}

/* The lower word of high:low, shifted to the right by shift mod 32. */
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline uint32_t atomicOr(uint32_t *word, uint32_t bits)
{
    return emulation::atomic_or(word, bits);
}

static inline uint32_t atomicAdd(uint32_t *word, uint32_t value)
{
    return emulation::atomic_add(word, value);
}

static inline uint32_t atomicCAS(uint32_t *word, uint32_t expected, uint32_t value)
{
    return emulation::atomic_cas(word, expected, value);
}

#endif
