/* SPDX-License-Identifier: MIT */
/* Threads that bring the pages of new memory in, ahead of the one thread that fills it from front
 * to back. The first touch of a page makes the kernel clear it, and a virtual machine may first
 * have to get it from its host: without help the filler waits for that while the disk waits for the
 * filler. What the memory holds is never changed. Where the system cannot do it (Linux
 * before 5.14), or memory is short, nothing happens: the filler then touches the pages itself. */
#ifndef MOE_HOST_PAGES_AHEAD_H
#define MOE_HOST_PAGES_AHEAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct moe_pages_ahead moe_pages_ahead;

/* Begins with n_threads threads, at most 4. NULL when there is nothing to do or no memory or thread
 * for it. The memory must stay mapped until stop(). */
moe_pages_ahead *moe_pages_ahead_start(void *memory, size_t bytes, uint32_t n_threads);
/* Says how far the filler is. ahead may be NULL. */
void moe_pages_ahead_filled(moe_pages_ahead *ahead, size_t bytes);
/* Ends the threads, each after at most one step of 4 MiB. *ahead may be NULL, and becomes it. */
void moe_pages_ahead_stop(moe_pages_ahead **ahead);

#endif
