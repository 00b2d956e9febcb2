/* SPDX-License-Identifier: MIT */
/* Threads that bring the pages of slots in, a little ahead of the first expert that is read into
 * them: a cache hands out the slots of a size class in ascending order until all have been used.
 * The reader then waits for the disk alone, not for pages to be cleared. */
#ifndef MOE_OFFLOAD_SLOT_PAGES_H
#define MOE_OFFLOAD_SLOT_PAGES_H

#include "offload/slot_arena.h"

typedef struct moe_slot_pages moe_slot_pages;

/* Begins, with n_threads threads at most, for an arena in memory that the host reads. NULL when
 * there is nothing to do or no memory for it. At most 96 MiB of a size class have pages that were
 * never used. Stop before the arena's pages go back to the system. */
moe_slot_pages *moe_slot_pages_start(const moe_slot_arena *arena, uint32_t n_threads);
/* Says that an expert will be read into the slot. pages may be NULL. */
void moe_slot_pages_taken(moe_slot_pages *pages, uint32_t slot);
/* Ends the threads. *pages may be NULL, and becomes it. */
void moe_slot_pages_stop(moe_slot_pages **pages);

#endif
