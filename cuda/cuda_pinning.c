/* SPDX-License-Identifier: MIT */
/* Page-locks pieces of host memory (cuda_host_memory.c), when they are needed or ahead of that.
 *
 * A thread locks the pieces of large blocks from their allocation on, in ascending order. So the
 * first copies from a piece seldom wait for the driver, which takes about half a second for a GiB.
 * A piece that is needed sooner goes first. */
#include "cuda/cuda_internal.h"

/* Page-locks memory so that host and device use the same address for it, as they always do for
 * memory of cudaHostAlloc(). */
static bool lock_pages(void *memory, size_t bytes)
{
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    void *seen = NULL;
    if (cudaHostGetDevicePointer(&seen, memory, 0) == cudaSuccess && seen == memory) {
        return true;
    }
    (void)cudaGetLastError();
    (void)cudaHostUnregister(memory);
    (void)cudaGetLastError();
    return false;
}

static size_t bytes_of_piece(const moe_cuda_device *cuda, const moe_cuda_host_block *block,
                             size_t piece)
{
    size_t left = block->bytes - piece * cuda->pin_bytes;
    return left < cuda->pin_bytes ? left : cuda->pin_bytes;
}

void moe_cuda_pin_lock(moe_cuda_device *cuda)
{
    atomic_fetch_add(&cuda->pinning.n_waiting, 1);
    pthread_mutex_lock(&cuda->pin_lock);
    atomic_fetch_sub(&cuda->pinning.n_waiting, 1);
}

void moe_cuda_pin_unlock(moe_cuda_device *cuda)
{
    pthread_cond_signal(&cuda->pinning.changed);
    pthread_mutex_unlock(&cuda->pin_lock);
}

/* Under the pin lock. */
static void pin_now(moe_cuda_device *cuda, moe_cuda_host_block *block, size_t piece)
{
    bool locked =
        lock_pages(block->memory + piece * cuda->pin_bytes, bytes_of_piece(cuda, block, piece));
    atomic_store(&block->pieces[piece], locked ? MOE_CUDA_PINNED : MOE_CUDA_REFUSED);
}

void moe_cuda_pin_piece(moe_cuda_device *cuda, moe_cuda_host_block *block, size_t piece)
{
    moe_cuda_pin_lock(cuda);
    if (atomic_load(&block->pieces[piece]) == MOE_CUDA_UNTOUCHED) {
        pin_now(cuda, block, piece);
    }
    moe_cuda_pin_unlock(cuda);
}

/* The first piece of a block that nobody has asked for, and its block; NULL: there is none. Blocks
 * of one piece are locked when they are allocated. Under the pin lock, without which no block is
 * freed. */
static moe_cuda_host_block *find_untouched(moe_cuda_device *cuda, size_t *piece)
{
    moe_cuda_host_block *found = NULL;
    pthread_mutex_lock(&cuda->lock);
    for (moe_cuda_host_block *b = cuda->host_blocks; b != NULL && found == NULL; b = b->next) {
        while (b->n_ahead < b->n_pieces &&
               atomic_load(&b->pieces[b->n_ahead]) != MOE_CUDA_UNTOUCHED) {
            b->n_ahead++;
        }
        found = b->n_pieces > 1 && b->n_ahead < b->n_pieces ? b : NULL;
        *piece = b->n_ahead;
    }
    pthread_mutex_unlock(&cuda->lock);
    return found;
}

static void *pin_ahead(void *user)
{
    moe_cuda_device *cuda = user;
    size_t piece;
    (void)cudaSetDevice(cuda->index);
    pthread_mutex_lock(&cuda->pin_lock);
    while (!cuda->pinning.stop) {
        moe_cuda_host_block *block = NULL; /* while others wait for the lock */
        if (atomic_load(&cuda->pinning.n_waiting) == 0) {
            block = find_untouched(cuda, &piece);
        }
        if (block != NULL) {
            pin_now(cuda, block, piece);
        } else {
            pthread_cond_wait(&cuda->pinning.changed, &cuda->pin_lock);
        }
    }
    pthread_mutex_unlock(&cuda->pin_lock);
    return NULL;
}

void moe_cuda_pin_ahead(moe_cuda_device *cuda)
{
    moe_cuda_pin_lock(cuda);
    if (!cuda->pinning.has_thread) {
        /* Without the thread each piece is locked when it is needed. */
        cuda->pinning.has_thread =
            pthread_create(&cuda->pinning.thread, NULL, pin_ahead, cuda) == 0;
    }
    moe_cuda_pin_unlock(cuda);
}

void moe_cuda_pinning_close(moe_cuda_device *cuda)
{
    moe_cuda_pin_lock(cuda);
    cuda->pinning.stop = true;
    moe_cuda_pin_unlock(cuda);
    if (cuda->pinning.has_thread) {
        pthread_join(cuda->pinning.thread, NULL);
    }
}
