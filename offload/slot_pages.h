/* SPDX-License-Identifier: MIT */
/* Threads that bring the pages of slots in shortly before an expert is first read into them. So the
 * reader waits only for the disk, not for the kernel to clear pages. The order is known: a cache
 * gives out the slots of a size class in ascending order until all have been used. */
#ifndef MOE_OFFLOAD_SLOT_PAGES_H
#define MOE_OFFLOAD_SLOT_PAGES_H

#include "offload/slot_arena.h"

typedef struct moe_slot_pages moe_slot_pages;

/* Starts at most n_threads threads for an arena in memory that the host reads. They bring in at
 * most 96 MiB of each size class ahead of its use. NULL when there is nothing to do, or memory is
 * short. Stop them before pages of the arena go back to the system. */
moe_slot_pages *moe_slot_pages_start(const moe_slot_arena *arena, uint32_t n_threads);
/* Says that an expert will be read into the slot. pages may be NULL. */
void moe_slot_pages_taken(moe_slot_pages *pages, uint32_t slot);
/* Says that an expert will be read into the slot soon, though slots before it have not been taken.
 * pages may be NULL. */
void moe_slot_pages_hurry(moe_slot_pages *pages, uint32_t slot);
/* Ends the threads and sets *pages to NULL. *pages may be NULL. */
void moe_slot_pages_stop(moe_slot_pages **pages);

#endif
