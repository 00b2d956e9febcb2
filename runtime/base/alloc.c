/* SPDX-License-Identifier: MIT */
#include "runtime/base/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/moe_assert.h"

void *moe_calloc(size_t count, size_t size)
{
    if (count == 0 || size == 0) {
        return calloc(1, 1);
    }
    return calloc(count, size);
}

void *moe_realloc_array(void *array, size_t count, size_t size)
{
    uint64_t bytes;
    if (!moe_mul_u64(count, size, &bytes)) {
        return NULL;
    }
    return realloc(array, bytes == 0 ? 1 : bytes);
}

void *moe_calloc_aligned(size_t count, size_t size)
{
    uint64_t bytes;
    if (!moe_mul_u64(count, size, &bytes) || bytes > SIZE_MAX - 64) {
        return NULL;
    }
    bytes = bytes == 0 ? 64 : (bytes + 63) & ~(uint64_t)63;
    void *memory = aligned_alloc(64, bytes);
    if (memory != NULL) {
        memset(memory, 0, bytes);
    }
    return memory;
}

void *moe_map_pages(size_t bytes)
{
    MOE_ASSERT(bytes > 0);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages != MAP_FAILED ? pages : NULL;
}

void moe_unmap_pages(void *pages, size_t bytes)
{
    if (pages != NULL) {
        munmap(pages, bytes);
    }
}

char *moe_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    if (copy != NULL) {
        memcpy(copy, text, size);
    }
    return copy;
}
