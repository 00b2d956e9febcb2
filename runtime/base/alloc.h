/* SPDX-License-Identifier: MIT */
/* Checked allocation: a product that overflows fails as if memory were exhausted. */
#ifndef MOE_BASE_ALLOC_H
#define MOE_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Allocates zero-filled memory for count elements. A size of 0 gives a valid pointer. NULL: count
 * * size overflows, or memory is short. Release with free(). */
void *moe_calloc(size_t count, size_t size);

/* Like realloc for an array; the old array stays valid on failure. New bytes are not cleared. */
void *moe_realloc_array(void *array, size_t count, size_t size);

/* Cache-line (64-byte) aligned and zero-filled. Release with free(). */
void *moe_calloc_aligned(size_t count, size_t size);

/* Maps whole pages, zero-filled; unmapping returns them to the system at once. NULL when memory is
 * short. bytes > 0. */
void *moe_map_pages(size_t bytes);
void moe_unmap_pages(void *pages, size_t bytes);

/* Returns a copy of the text; NULL: memory is short. */
char *moe_strdup(const char *text);

/* Sets *product to a * b and returns true, or returns false if the product overflows. */
static inline bool moe_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

static inline bool moe_add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

/* Rounds up to whole cache lines of 64 bytes. `bytes` must be at most SIZE_MAX - 63. */
static inline size_t moe_align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

#endif
