/* SPDX-License-Identifier: MIT */
/* Which pages of a mapping are in memory. */
#ifndef MOE_TESTS_PAGES_PRESENT_H
#define MOE_TESTS_PAGES_PRESENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096u

static inline uint8_t *map_pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* How many pages of the bytes [from, to) of the memory; both are multiples of a page. SIZE_MAX: the
 * system does not say. */
static inline size_t pages_present(uint8_t *memory, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t at = from; at < to; at += PAGE) {
        unsigned char in;
        if (mincore(memory + at, PAGE, &in) != 0) {
            return SIZE_MAX;
        }
        n += in & 1u;
    }
    return n;
}

/* Whether all of them come within 120 s. */
static inline bool pages_come(uint8_t *memory, size_t from, size_t to)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 120000 && pages_present(memory, from, to) < (to - from) / PAGE; i++) {
        nanosleep(&moment, NULL);
    }
    return pages_present(memory, from, to) == (to - from) / PAGE;
}

/* Whether the kernel brings pages in on request (Linux 5.14). */
static inline bool pages_can_come(uint8_t *memory)
{
    return madvise(memory, PAGE, 23 /* MADV_POPULATE_WRITE */) == 0;
}

#endif
