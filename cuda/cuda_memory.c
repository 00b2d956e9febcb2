/* SPDX-License-Identifier: MIT */
/* The device's memory. CUDA rounds an allocation above 1 MiB up to 2 MiB, and allocating waits for
 * the device. Pages of the KV cache and states of recurrent layers come and go one by one, all of
 * a few sizes, so they are parts of chunks:
 *
 *    | part | part | free | part |     one cudaMalloc(), a multiple of 2 MiB
 *
 * All parts of a chunk have one size. The more parts of that size exist, the more a new chunk has,
 * up to 32 MiB. A chunk is freed with its last part. A freed part may be handed out again while
 * queued operations still use it: the next owner's operations run after them, because all are on
 * the same stream. */
#include <stdlib.h>

#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define MIB        1048576.0
#define ROUNDED_TO ((size_t)2 << 20)
#define LEAST_PART ((size_t)1 << 20) /* CUDA packs smaller allocations into 2 MiB itself */
#define MOST_PART  ((size_t)16 << 20)
#define MOST_CHUNK ((size_t)32 << 20)
#define MAX_PARTS  64u

typedef struct moe_cuda_chunk {
    struct moe_cuda_chunk *next;
    uint8_t *memory;
    size_t part_bytes;
    uint32_t n_parts;
    uint64_t used; /* a bit for each part */
} moe_cuda_chunk;

static int allocate(moe_cuda_device *cuda, size_t bytes, void **memory, moe_error *err)
{
    cudaError_t code = cudaMalloc(memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return moe_fail(
            err, MOE_ERR_MEMORY,
            "the GPU has no %.1f MiB left (cudaMalloc: %s); lower options.device_memory or "
            "the context, or end other programs on it",
            (double)bytes / MIB, cudaGetErrorString(code));
    }
    return moe_cuda_check(cuda, code, "cudaMalloc", "device memory", err);
}

/* ---- Parts ---- */

static bool is_part(size_t bytes)
{
    return bytes > LEAST_PART && bytes <= MOST_PART && bytes % ROUNDED_TO != 0;
}

static size_t rounded(size_t bytes)
{
    return (bytes + ROUNDED_TO - 1) / ROUNDED_TO * ROUNDED_TO;
}

/* The number of parts of the next chunk. Starts with half the number of parts of this size that
 * exist, but no fewer than fit the rounded allocation of a single part. From that number down to
 * half of it, picks the one that loses the fewest bytes to rounding. */
static uint32_t parts_of_next(const moe_cuda_device *cuda, size_t part_bytes)
{
    size_t n = 0;
    for (const moe_cuda_chunk *c = cuda->chunks; c != NULL; c = c->next) {
        n += c->part_bytes == part_bytes ? c->n_parts : 0;
    }
    size_t bytes = (n / 2 + 1) * part_bytes;
    size_t most = rounded(bytes < MOST_CHUNK ? bytes : MOST_CHUNK) / part_bytes;
    most = most < MAX_PARTS ? most : MAX_PARTS;
    size_t best = most;
    for (size_t k = most; k >= (most + 1) / 2 && k > 0; k--) {
        /* Compares the bytes lost for each part, without divisions: both sides times k * best. */
        size_t lost = (rounded(k * part_bytes) - k * part_bytes) * best;
        best = lost < (rounded(best * part_bytes) - best * part_bytes) * k ? k : best;
    }
    return (uint32_t)best;
}

static int add_chunk(moe_cuda_device *cuda, size_t part_bytes, moe_cuda_chunk **out, moe_error *err)
{
    void *memory = NULL;
    moe_cuda_chunk *chunk = moe_calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a record of device memory");
    }
    chunk->part_bytes = part_bytes;
    chunk->n_parts = parts_of_next(cuda, part_bytes);
    int status = allocate(cuda, chunk->n_parts * part_bytes, &memory, err);
    if (status == MOE_ERR_MEMORY && chunk->n_parts > 1) {
        chunk->n_parts = 1; /* there may still be memory for the one part that is needed */
        status = allocate(cuda, part_bytes, &memory, err);
    }
    if (status != MOE_OK) {
        free(chunk);
        return status;
    }
    chunk->memory = memory;
    chunk->next = cuda->chunks;
    cuda->chunks = chunk;
    *out = chunk;
    return MOE_OK;
}

static uint64_t all_parts(const moe_cuda_chunk *chunk)
{
    return chunk->n_parts == 64 ? UINT64_MAX : (UINT64_C(1) << chunk->n_parts) - 1;
}

static int take_part(moe_cuda_device *cuda, size_t bytes, void **memory, moe_error *err)
{
    moe_cuda_chunk *chunk = cuda->chunks;
    while (chunk != NULL && (chunk->part_bytes != bytes || chunk->used == all_parts(chunk))) {
        chunk = chunk->next;
    }
    MOE_TRY(chunk == NULL ? add_chunk(cuda, bytes, &chunk, err) : MOE_OK);
    uint32_t part = 0;
    while ((chunk->used >> part & 1) != 0) {
        part++;
    }
    chunk->used |= UINT64_C(1) << part;
    *memory = chunk->memory + part * bytes;
    return MOE_OK;
}

/* False if the memory is not a part of a chunk. */
static bool free_part(moe_cuda_device *cuda, void *memory)
{
    moe_cuda_chunk **place = &cuda->chunks;
    for (; *place != NULL; place = &(*place)->next) {
        moe_cuda_chunk *chunk = *place;
        size_t at = (uintptr_t)memory - (uintptr_t)chunk->memory;
        if (at >= chunk->n_parts * chunk->part_bytes) {
            continue;
        }
        chunk->used &= ~(UINT64_C(1) << at / chunk->part_bytes);
        if (chunk->used == 0) {
            *place = chunk->next;
            (void)cudaFree(chunk->memory);
            free(chunk);
        }
        return true;
    }
    return false;
}

/* ---- Operations ---- */

int moe_cuda_op_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    *memory = NULL;
    MOE_TRY(moe_cuda_enter(cuda, err));
    /* Kernels read whole aligned pieces, even where an array ends inside one. */
    size_t size = bytes == 0 ? 1 : moe_align64(bytes);
    if (!is_part(size)) {
        return allocate(cuda, size, memory, err);
    }
    pthread_mutex_lock(&cuda->memory_lock);
    int status = take_part(cuda, size, memory, err);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* cudaFree() waits for all that the device does, so nothing queued can still use the memory. */
void moe_cuda_op_free(moe_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    (void)cudaSetDevice(cuda->index);
    pthread_mutex_lock(&cuda->memory_lock);
    bool part = memory != NULL && free_part(cuda, memory);
    pthread_mutex_unlock(&cuda->memory_lock);
    if (!part) {
        (void)cudaFree(memory);
    }
    (void)cudaGetLastError(); /* otherwise the next launch would report it */
}

void moe_cuda_memory_close(moe_cuda_device *cuda)
{
    while (cuda->chunks != NULL) {
        moe_cuda_chunk *chunk = cuda->chunks;
        cuda->chunks = chunk->next;
        (void)cudaFree(chunk->memory);
        free(chunk);
    }
}
