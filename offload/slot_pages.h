/* SPDX-License-Identifier: MIT */
/* Threads that bring the pages of slots in a little ahead of the first expert that is read into
 * them, so that the reader waits for the disk alone and not for the kernel to clear pages. They
 * know the order: a cache gives out the slots of a size class in ascending order until all have
 * been used. */
#ifndef MOE_OFFLOAD_SLOT_PAGES_H
#define MOE_OFFLOAD_SLOT_PAGES_H

#include "offload/slot_arena.h"

typedef struct moe_slot_pages moe_slot_pages;

/* Starts at most n_threads threads for an arena in memory that the host reads. NULL when there is
 * nothing to do or memory is short. They bring in at most 96 MiB of a size class ahead of use. Stop
 * them before the arena's pages go back to the system. */
moe_slot_pages *moe_slot_pages_start(const moe_slot_arena *arena, uint32_t n_threads);
/* Says that an expert will be read into the slot. pages may be NULL. */
void moe_slot_pages_taken(moe_slot_pages *pages, uint32_t slot);
/* Says that an expert will be read into the slot soon, though slots before it have not been taken.
 * pages may be NULL. */
void moe_slot_pages_hurry(moe_slot_pages *pages, uint32_t slot);
/* Ends the threads and sets *pages to NULL. *pages may be NULL. */
void moe_slot_pages_stop(moe_slot_pages **pages);

#endif
