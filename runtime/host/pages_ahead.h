/* SPDX-License-Identifier: MIT */
/* Threads that touch the pages of new memory ahead of the one thread (the filler) that fills it.
 * The memory is one or more regions, each filled from front to back. The first touch of a page
 * makes the kernel clear it, and a virtual machine may first have to get it from its host: without
 * help the filler waits for that while the disk waits for the filler. The threads never change the
 * memory's contents. If the system cannot do it (Linux before 5.14), or memory is short, nothing
 * happens: the filler then touches the pages itself. */
#ifndef MOE_HOST_PAGES_AHEAD_H
#define MOE_HOST_PAGES_AHEAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct moe_pages_ahead moe_pages_ahead;

typedef struct moe_pages_region {
    void *memory;
    size_t bytes;
} moe_pages_region;

/* Begins with n_threads threads, at most 4. They stay at most most_ahead bytes ahead of the filler
 * in each region (SIZE_MAX: no limit), and sleep while they wait for the filler. NULL when there is
 * nothing to do or no memory or thread for it. The memory must stay mapped until stop(). */
moe_pages_ahead *moe_pages_ahead_start(const moe_pages_region *regions, uint32_t n_regions,
                                       size_t most_ahead, uint32_t n_threads);
/* Says that the filler has filled the first bytes of a region, or soon will have. ahead may be
 * NULL. Any thread may call it. */
void moe_pages_ahead_filled(moe_pages_ahead *ahead, uint32_t region, size_t bytes);
/* Asks for a part of a region next, because it will be filled out of turn. Does nothing if many
 * such parts wait already. ahead may be NULL. */
void moe_pages_ahead_hurry(moe_pages_ahead *ahead, uint32_t region, size_t offset, size_t bytes);
/* Ends the threads, each after at most one step of 4 MiB, and sets *ahead to NULL. *ahead may be
 * NULL. */
void moe_pages_ahead_stop(moe_pages_ahead **ahead);

#endif
