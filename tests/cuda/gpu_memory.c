/* SPDX-License-Identifier: MIT */
/* Tests of kernels hand them ordinary memory, as the emulation takes it. Where a GPU cannot read
 * that by itself (which takes a driver and a kernel for it), it can read what is page-locked, at
 * the same address. So programs linked with this file, and by --wrap of the functions below, have
 * their heap, their static data and the stack of main() page-locked before main() begins.
 *
 * The heap is blocks of powers of two, each with its class before it, and a list of free ones for
 * each class. Plain page-locked allocations: managed memory is not used. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "matmul_cases.h"

#define HEAP_BYTES  ((size_t)1 << 30)
#define STACK_BYTES ((size_t)16 << 20)
#define PAGE        4096u
#define HEAD_BYTES  64u /* before a block: keeps it aligned */
#define LEAST_CLASS 7u
#define N_CLASSES   31u

typedef struct head {
    struct head *next;
    uint32_t class;
} head;

static struct {
    _Atomic bool ready;
    pthread_mutex_t lock;
    uint8_t *begin, *end, *top;
    head *free[N_CLASSES];
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

extern char __data_start[], _end[]; /* of the linker: all static data that is written */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
int __real_main(int argc, char **argv);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
guarded __wrap_guarded_new(size_t bytes);
void __wrap_guarded_free(guarded *memory);
int __wrap_main(int argc, char **argv);

static bool is_ours(const void *memory)
{
    return (const uint8_t *)memory >= heap.begin && (const uint8_t *)memory < heap.end;
}

void *__wrap_malloc(size_t bytes)
{
    if (!atomic_load(&heap.ready)) {
        return __real_malloc(bytes);
    }
    uint32_t class = LEAST_CLASS;
    while (class < N_CLASSES && (size_t)1 << class < bytes + HEAD_BYTES) {
        class ++;
    }
    if (class == N_CLASSES) {
        return NULL;
    }
    size_t size = (size_t)1 << class;
    pthread_mutex_lock(&heap.lock);
    head *block = heap.free[class];
    if (block != NULL) {
        heap.free[class] = block->next;
    } else if ((size_t)(heap.end - heap.top) >= size) {
        block = (head *)(void *)heap.top;
        heap.top += size;
    }
    pthread_mutex_unlock(&heap.lock);
    if (block == NULL) {
        return NULL;
    }
    *block = (head){.class = class};
    return (uint8_t *)block + HEAD_BYTES;
}

void __wrap_free(void *memory)
{
    if (!is_ours(memory)) {
        __real_free(memory);
        return;
    }
    head *block = (head *)(void *)((uint8_t *)memory - HEAD_BYTES);
    pthread_mutex_lock(&heap.lock);
    block->next = heap.free[block->class];
    heap.free[block->class] = block;
    pthread_mutex_unlock(&heap.lock);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    if (!atomic_load(&heap.ready)) {
        return __real_calloc(n, bytes);
    }
    if (bytes > 0 && n > HEAP_BYTES / bytes) {
        return NULL;
    }
    void *memory = __wrap_malloc(n * bytes);
    return memory == NULL ? NULL : memset(memory, 0, n * bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    if (memory == NULL) {
        return __wrap_malloc(bytes);
    }
    if (!is_ours(memory)) {
        return __real_realloc(memory, bytes);
    }
    const head *block = (const head *)(const void *)((uint8_t *)memory - HEAD_BYTES);
    size_t old = ((size_t)1 << block->class) - HEAD_BYTES;
    void *larger = bytes <= old ? memory : __wrap_malloc(bytes);
    if (larger != NULL && larger != memory) {
        memcpy(larger, memory, old);
        __wrap_free(memory);
    }
    return larger;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    if (!atomic_load(&heap.ready) || alignment > HEAD_BYTES) {
        return __real_aligned_alloc(alignment, bytes);
    }
    return __wrap_malloc(bytes);
}

/* Without the page behind it that nobody may touch; ending as uneven as with it. */
guarded __wrap_guarded_new(size_t bytes)
{
    size_t body = (bytes + HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES;
    guarded memory = {.map = __wrap_malloc(body), .map_bytes = body};
    if (memory.map == NULL) {
        perror("memory for the test");
        exit(1);
    }
    memory.data = memory.map + body - bytes;
    return memory;
}

void __wrap_guarded_free(guarded *memory)
{
    __wrap_free(memory->map);
    memory->map = NULL;
}

typedef struct main_call {
    int argc;
    char **argv;
    int code;
} main_call;

static void *call_main(void *arg)
{
    main_call *call = arg;
    call->code = __real_main(call->argc, call->argv);
    return NULL;
}

static int run_on(void *stack, main_call *call)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, call_main, call) != 0) {
        return 1;
    }
    return pthread_join(thread, NULL);
}

int __wrap_main(int argc, char **argv)
{
    main_call call = {argc, argv, 1};
    void *memory = NULL;
    void *stack = NULL;
    uintptr_t begin = (uintptr_t)__data_start / PAGE * PAGE;
    uintptr_t end = ((uintptr_t)_end + PAGE - 1) / PAGE * PAGE;
    cudaError_t code = cudaHostAlloc(&memory, HEAP_BYTES, cudaHostAllocDefault);
    if (code == cudaSuccess) {
        code = cudaHostAlloc(&stack, STACK_BYTES, cudaHostAllocDefault);
    }
    if (code == cudaSuccess &&
        cudaHostRegister((void *)begin, end - begin, cudaHostRegisterMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        fprintf(stderr,
                "static data cannot be page-locked: a kernel that is handed some may fail\n");
    }
    if (code != cudaSuccess) {
        fprintf(stderr, "the test's memory cannot be page-locked: %s\n", cudaGetErrorString(code));
        return 1;
    }
    heap.begin = heap.top = memory;
    heap.end = heap.begin + HEAP_BYTES;
    atomic_store(&heap.ready, true);
    if (run_on(stack, &call) != 0) {
        fprintf(stderr, "there is no thread on a page-locked stack\n");
    }
    /* Tests look at results alone, which do not say why a kernel did not run. */
    code = cudaGetLastError();
    if (code != cudaSuccess) {
        fprintf(stderr, "CUDA's last error: %s\n", cudaGetErrorString(code));
        return 1;
    }
    return call.code;
}
