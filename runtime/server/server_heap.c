/* SPDX-License-Identifier: MIT */
#include "server_heap.h"

#include <stdlib.h>

#if defined(__GLIBC__)

#include <malloc.h>

enum {
    MAPPED_FROM = 64 << 10, /* larger pieces are mapped one by one, and unmapped when freed */
    SPARE_BYTES = 64 << 10,
};

/* Fixes two of glibc's settings. By default it raises the size from which freed memory is returned
 * to the system, up to 32 MiB, and uses up to eight heaps per core. */
void server_heap_configure(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_FROM);
    (void)mallopt(M_TRIM_THRESHOLD, SPARE_BYTES);
    (void)mallopt(M_TOP_PAD, SPARE_BYTES);
    (void)mallopt(M_ARENA_MAX, 2);
}

void server_heap_trim(void)
{
    (void)malloc_trim(SPARE_BYTES);
}

#else

/* Other C libraries return freed memory to the system without such settings. */
void server_heap_configure(void)
{
}

void server_heap_trim(void)
{
}

#endif
