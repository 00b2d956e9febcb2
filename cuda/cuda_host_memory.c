/* SPDX-License-Identifier: MIT */
/* Host memory that the link copies from and to.
 *
 * Page-locking a GiB takes the driver about half a second, and the driver may refuse a large
 * request but grant the same memory in pieces. Blocks are therefore mapped whole and page-locked
 * piece by piece: by a thread from their allocation on, or when a piece is first copied from, if
 * that is sooner (cuda_pinning.c). So opening does not wait for page-locking. Blocks of at most one
 * piece (activations, logits) are page-locked when they are allocated.
 *
 *    block   | piece 0: pinned | piece 1: untouched | piece 2: refused | ..
 *
 * A piece that the driver refuses to lock is still used: its copies go through a small ring of
 * page-locked parts. Transfers never cross the border of two pieces, because each piece was locked
 * by its own call. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/host/numa_memory.h"

#define HUGE_PAGE  (2u << 20)
#define MIB        1048576.0
#define PART_BYTES (2u << 20) /* of the ring for unpinned memory */
/* A piece is this fraction of the device's memory, but within these bounds. They matter because a
 * copy from an untouched piece waits until the whole piece is locked. */
#define PIECE_DIVISOR 256u
#define LEAST_PIECE   ((size_t)HUGE_PAGE)
#define MOST_PIECE    ((size_t)1 << 30)

/* The device that allocates host memory for this one. */
static moe_cuda_device *owner_of(moe_cuda_device *cuda)
{
    return cuda->host_owner != NULL ? cuda->host_owner : cuda;
}

void moe_cuda_host_share(moe_device *device, moe_device *owner)
{
    moe_cuda_device_of(device)->host_owner = moe_cuda_device_of(owner);
}

/* The block that these bytes lie in, or NULL. Under the owner's lock. */
static moe_cuda_host_block *find_block(moe_cuda_device *cuda, const void *memory, size_t bytes)
{
    moe_cuda_host_block *b = cuda->host_blocks;
    for (; b != NULL; b = b->next) {
        size_t at = (uintptr_t)memory - (uintptr_t)b->memory; /* beyond the block's end if memory is
                                                               * below it */
        if (at <= b->bytes && bytes <= b->bytes - at) {
            break;
        }
    }
    return b;
}

/* Like find_block(), called under the lock of a device that may not be the owner. */
static moe_cuda_host_block *find_shared(moe_cuda_device *cuda, const void *memory, size_t bytes)
{
    moe_cuda_device *owner = owner_of(cuda);
    if (owner == cuda) {
        return find_block(cuda, memory, bytes);
    }
    pthread_mutex_lock(&owner->lock);
    moe_cuda_host_block *block = find_block(owner, memory, bytes);
    pthread_mutex_unlock(&owner->lock);
    return block;
}

bool moe_cuda_pin(moe_cuda_device *cuda, const void *memory, size_t bytes)
{
    bool pinned = true;
    cuda = owner_of(cuda); /* memory is locked portably, that is, for all devices */
    pthread_mutex_lock(&cuda->lock);
    moe_cuda_host_block *block = find_block(cuda, memory, bytes);
    pthread_mutex_unlock(&cuda->lock);
    if (block == NULL || block->of_cuda || bytes == 0) {
        return block != NULL;
    }
    size_t at = (size_t)((const uint8_t *)memory - block->memory);
    for (size_t p = at / cuda->pin_bytes; p <= (at + bytes - 1) / cuda->pin_bytes; p++) {
        if (atomic_load(&block->pieces[p]) == MOE_CUDA_UNTOUCHED) {
            moe_cuda_pin_piece(cuda, block, p);
        }
        pinned &= atomic_load(&block->pieces[p]) == MOE_CUDA_PINNED;
    }
    return pinned;
}

bool moe_cuda_has_host_memory(moe_cuda_device *user, const void *memory, size_t bytes)
{
    moe_cuda_device *cuda = owner_of(user);
    pthread_mutex_lock(&cuda->lock);
    const moe_cuda_host_block *block = find_block(cuda, memory, bytes);
    pthread_mutex_unlock(&cuda->lock);
    if (block == NULL || block->of_cuda || bytes == 0) {
        return block != NULL;
    }
    if (!user->recording.under_way) { /* a stream that captures must not lock pages */
        (void)moe_cuda_pin(cuda, memory, bytes);
    }
    size_t at = (size_t)((const uint8_t *)memory - block->memory);
    size_t piece = at / cuda->pin_bytes;
    return piece == (at + bytes - 1) / cuda->pin_bytes &&
           atomic_load(&block->pieces[piece]) == MOE_CUDA_PINNED;
}

/* ---- Blocks ---- */

/* Maps memory near the GPU, in huge pages if possible. NULL if the system has none. */
static void *map_memory(const moe_cuda_device *cuda, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    if (bytes >= HUGE_PAGE) {
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    }
    if (cuda->numa_node >= 0) {
        (void)moe_numa_prefer(memory, bytes, (unsigned)cuda->numa_node);
    }
    return memory;
}

/* Locks a block of one piece right away. If the driver refuses, CUDA may still have page-locked
 * memory of its own. */
static void lock_small(moe_cuda_device *cuda, moe_cuda_host_block *block)
{
    void *memory = NULL;
    moe_cuda_pin_piece(cuda, block, 0);
    if (atomic_load(&block->pieces[0]) == MOE_CUDA_PINNED) {
        return;
    }
    if (cudaHostAlloc(&memory, block->bytes, cudaHostAllocPortable) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    munmap(block->memory, block->bytes);
    block->memory = memory;
    block->of_cuda = true;
}

int moe_cuda_host_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    size_t size = bytes == 0 ? 1 : bytes;
    size_t n_pieces = (size + cuda->pin_bytes - 1) / cuda->pin_bytes;
    *memory = NULL;
    MOE_TRY(moe_cuda_enter(cuda, err));
    moe_cuda_host_block *block = moe_calloc(1, sizeof *block + n_pieces * sizeof block->pieces[0]);
    if (block == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a record of host memory");
    }
    block->memory = map_memory(cuda, size);
    block->bytes = size;
    block->n_pieces = n_pieces;
    if (block->memory == NULL) {
        free(block);
        return moe_fail(err, MOE_ERR_MEMORY,
                        "%.1f MiB of host memory cannot be had; lower options.host_memory",
                        (double)bytes / MIB);
    }
    if (n_pieces == 1) {
        lock_small(cuda, block);
    }
    pthread_mutex_lock(&cuda->lock);
    block->next = cuda->host_blocks;
    cuda->host_blocks = block;
    pthread_mutex_unlock(&cuda->lock);
    if (n_pieces > 1) {
        moe_cuda_pin_ahead(cuda);
    }
    *memory = block->memory;
    return MOE_OK;
}

/* Takes the block that begins here off the list; NULL: there is none. No piece of it is being
 * locked when this returns. */
static moe_cuda_host_block *take_block(moe_cuda_device *cuda, const void *memory)
{
    moe_cuda_pin_lock(cuda);
    pthread_mutex_lock(&cuda->lock);
    moe_cuda_host_block **place = &cuda->host_blocks;
    while (*place != NULL && (void *)(*place)->memory != memory) {
        place = &(*place)->next;
    }
    moe_cuda_host_block *block = *place;
    if (block != NULL) {
        *place = block->next;
    }
    pthread_mutex_unlock(&cuda->lock);
    moe_cuda_pin_unlock(cuda);
    return block;
}

void moe_cuda_host_free(moe_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    (void)cudaSetDevice(cuda->index);
    moe_cuda_host_block *block = take_block(cuda, memory);
    if (block == NULL) {
        return;
    }
    if (block->of_cuda) {
        (void)cudaFreeHost(block->memory);
    } else {
        for (size_t p = 0; p < block->n_pieces; p++) {
            if (atomic_load(&block->pieces[p]) == MOE_CUDA_PINNED) {
                (void)cudaHostUnregister(block->memory + p * cuda->pin_bytes);
            }
        }
        munmap(block->memory, block->bytes);
    }
    (void)cudaGetLastError(); /* otherwise the next launch would report it */
    free(block);
}

/* Page-locked memory and device memory can only be freed as a whole. */
bool moe_cuda_give_up_part(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
    return false;
}

void moe_cuda_take_back_part(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
}

/* ---- Copies ---- */

/* Copies through the ring, part by part; the caller's memory is free when this returns. */
static cudaError_t send_unpinned(moe_cuda_device *cuda, uint8_t *dst, const uint8_t *src,
                                 size_t bytes)
{
    moe_cuda_unpinned *ring = &cuda->unpinned;
    cudaError_t code = cudaSuccess;
    for (size_t at = 0; code == cudaSuccess && at < bytes;) {
        size_t n = bytes - at < PART_BYTES ? bytes - at : PART_BYTES;
        uint32_t part = ring->next++ % MOE_CUDA_UNPINNED_PARTS;
        code = cudaEventSynchronize(ring->passed[part]);
        if (code == cudaSuccess) {
            memcpy(ring->parts[part], src + at, n);
            code = cudaMemcpyAsync(dst + at, ring->parts[part], n, cudaMemcpyHostToDevice,
                                   cuda->to_device.stream);
        }
        if (code == cudaSuccess) {
            code = cudaEventRecord(ring->passed[part], cuda->to_device.stream);
        }
        at += n;
    }
    return code;
}

cudaError_t moe_cuda_send_range(moe_cuda_device *cuda, const moe_copy_range *range)
{
    const moe_cuda_host_block *block = find_shared(cuda, range->src, range->bytes);
    const size_t pin_bytes = owner_of(cuda)->pin_bytes;
    const uint8_t *src = range->src;
    uint8_t *dst = range->dst;
    if (block == NULL || block->of_cuda) {
        return cudaMemcpyAsync(dst, src, range->bytes, cudaMemcpyHostToDevice,
                               cuda->to_device.stream);
    }
    cudaError_t code = cudaSuccess;
    for (size_t at = 0; code == cudaSuccess && at < range->bytes;) {
        size_t in_block = (size_t)(src + at - block->memory);
        size_t piece = in_block / pin_bytes;
        size_t n = (piece + 1) * pin_bytes - in_block;
        n = n < range->bytes - at ? n : range->bytes - at;
        if (atomic_load(&block->pieces[piece]) == MOE_CUDA_PINNED) {
            code = cudaMemcpyAsync(dst + at, src + at, n, cudaMemcpyHostToDevice,
                                   cuda->to_device.stream);
        } else {
            code = send_unpinned(cuda, dst + at, src + at, n);
        }
        at += n;
    }
    return code;
}

cudaError_t moe_cuda_receive_range(moe_cuda_device *cuda, const moe_copy_range *range)
{
    const moe_cuda_host_block *block = find_shared(cuda, range->dst, range->bytes);
    const size_t pin_bytes = owner_of(cuda)->pin_bytes;
    const uint8_t *src = range->src;
    uint8_t *dst = range->dst;
    cudaError_t code = cudaSuccess;
    for (size_t at = 0; code == cudaSuccess && at < range->bytes;) {
        size_t left = range->bytes - at;
        size_t in_piece = pin_bytes - (size_t)(dst + at - block->memory) % pin_bytes;
        size_t n = left < in_piece || block->of_cuda ? left : in_piece;
        code = cudaMemcpyAsync(dst + at, src + at, n, cudaMemcpyDeviceToHost, cuda->to_host.stream);
        at += n;
    }
    return code;
}

/* ---- Opening and closing ---- */

int moe_cuda_host_memory_open(moe_cuda_device *cuda, uint64_t device_bytes, moe_error *err)
{
    size_t piece = (size_t)(device_bytes / PIECE_DIVISOR) / HUGE_PAGE * HUGE_PAGE;
    piece = piece < LEAST_PIECE ? LEAST_PIECE : piece;
    cuda->pin_bytes = piece < MOST_PIECE ? piece : MOST_PIECE;
    moe_cuda_unpinned *ring = &cuda->unpinned;
    for (uint32_t p = 0; p < MOE_CUDA_UNPINNED_PARTS; p++) {
        void *part = NULL;
        cudaError_t code = cudaHostAlloc(&part, PART_BYTES, cudaHostAllocDefault);
        if (code != cudaSuccess) {
            return moe_cuda_translate(code, "cudaHostAlloc", "memory for copies", err);
        }
        ring->parts[p] = part;
        code = cudaEventCreateWithFlags(&ring->passed[p], cudaEventDisableTiming);
        if (code != cudaSuccess) {
            return moe_cuda_translate(code, "cudaEventCreateWithFlags", "opening the link", err);
        }
    }
    return MOE_OK;
}

void moe_cuda_host_memory_close(moe_cuda_device *cuda)
{
    moe_cuda_pinning_close(cuda);
    while (cuda->host_blocks != NULL) {
        moe_cuda_host_free(&cuda->base, cuda->host_blocks->memory, cuda->host_blocks->bytes);
    }
    for (uint32_t p = 0; p < MOE_CUDA_UNPINNED_PARTS; p++) {
        if (cuda->unpinned.parts[p] != NULL) {
            (void)cudaFreeHost(cuda->unpinned.parts[p]);
        }
        if (cuda->unpinned.passed[p] != NULL) {
            (void)cudaEventDestroy(cuda->unpinned.passed[p]);
        }
    }
}
