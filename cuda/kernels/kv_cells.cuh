/* SPDX-License-Identifier: MIT */
/* Reads and writes rows of the KV cache a few elements at a time, as moe_kv_load_c() and
 * moe_kv_store_c() do. A row may start at any address that its type allows. */
#ifndef MOE_CUDA_KV_CELLS_CUH
#define MOE_CUDA_KV_CELLS_CUH

#include "cpu/kernels/vector_ops.h"
#include "cuda/kernels/vector_math.cuh"
#include "runtime/device/device.h"

/* The page of a layer's group that holds a stored position: moe_kv_entry(). */
__device__ static inline uint8_t *moe_kv_page_of(const moe_kv_layout &layout, void *const *pages,
                                                 uint32_t stored)
{
    size_t page = stored / MOE_KV_PAGE;
    return (uint8_t *)pages[page * (layout.n_other_groups + 1) + layout.group];
}

/* Where in a row the Q8_0 block of element i begins. */
__device__ static inline uint32_t moe_q8_block_at(uint32_t i)
{
    return i / MOE_KV_Q8_BLOCK * MOE_KV_Q8_BYTES;
}

template <int TYPE> __device__ static inline float moe_kv_load1(const uint8_t *row, uint32_t i)
{
    if (TYPE == MOE_KV_F32)
        return ((const float *)row)[i];
    if (TYPE == MOE_KV_F16)
        return moe_device_half_to_float(((const uint16_t *)row)[i]);
    const uint8_t *block = row + moe_q8_block_at(i);
    return moe_device_half_to_float(*(const uint16_t *)block) *
           (float)(int8_t)block[2 + i % MOE_KV_Q8_BLOCK];
}

/* Loads COUNT elements from element i on. COUNT is 2 or 4, and i a multiple of COUNT. wide: the row
 * is aligned so that one load gets this many elements of F16 or F32. */
template <int TYPE, int COUNT>
__device__ static inline void moe_kv_load(const uint8_t *row, uint32_t i, bool wide, float *x)
{
    if (TYPE == MOE_KV_Q8_0) {
        const uint8_t *block = row + moe_q8_block_at(i);
        const uint16_t *codes = (const uint16_t *)(block + 2 + i % MOE_KV_Q8_BLOCK);
        float d = moe_device_half_to_float(*(const uint16_t *)block);
#pragma unroll
        for (int k = 0; k < COUNT; k += 2) {
            uint16_t pair = codes[k / 2];
            x[k] = d * (float)(int8_t)(pair & 0xff);
            x[k + 1] = d * (float)(int8_t)(pair >> 8);
        }
    } else if (TYPE == MOE_KV_F16 && wide) {
        uint64_t bits = COUNT == 4 ? *(const uint64_t *)(row + 2 * (size_t)i)
                                   : *(const uint32_t *)(row + 2 * (size_t)i);
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            x[k] = moe_device_half_to_float((uint16_t)(bits >> (16 * k)));
    } else if (TYPE == MOE_KV_F32 && COUNT == 4 && wide) {
        moe_float4 four = *(const moe_float4 *)(row + 4 * (size_t)i);
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            x[k] = four.v[k];
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            x[k] = moe_kv_load1<TYPE>(row, i + k);
    }
}

#endif
