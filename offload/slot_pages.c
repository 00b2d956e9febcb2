/* SPDX-License-Identifier: MIT */
#include "offload/slot_pages.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"
#include "runtime/host/pages_ahead.h"

/* One and a half of the pieces that io_uring registers (io/uring_buffers.h): registering a piece
 * brings in all of its pages. */
#define MOST_AHEAD ((size_t)96 << 20)

struct moe_slot_pages {
    const moe_slot_arena *arena;
    moe_pages_ahead *ahead; /* one region for each class */
    uint32_t taken[];       /* [n_classes]: how many slots of each class were taken */
};

moe_slot_pages *moe_slot_pages_start(const moe_slot_arena *arena, uint32_t n_threads)
{
    const uint32_t n = arena->n_classes;
    moe_slot_pages *pages = moe_calloc(1, sizeof *pages + n * sizeof *pages->taken);
    moe_pages_region *regions = moe_calloc(n, sizeof *regions);
    if (pages != NULL && regions != NULL) {
        for (uint32_t c = 0; c < n; c++) {
            const moe_slot_class *class = &arena->classes[c];
            regions[c] = (moe_pages_region){.memory = arena->memory + class->arena_offset,
                                            .bytes = class->n_slots * class->slot_bytes};
        }
        pages->arena = arena;
        pages->ahead = moe_pages_ahead_start(regions, n, MOST_AHEAD, n_threads);
    }
    free(regions);
    if (pages != NULL && pages->ahead == NULL) {
        free(pages);
        return NULL;
    }
    return pages;
}

static uint32_t class_of(const moe_slot_pages *pages, uint32_t slot)
{
    MOE_ASSERT(slot < pages->arena->n_slots);
    uint32_t c = 0;
    while (slot >= pages->arena->classes[c].first_slot + pages->arena->classes[c].n_slots) {
        c++;
    }
    return c;
}

void moe_slot_pages_taken(moe_slot_pages *pages, uint32_t slot)
{
    if (pages == NULL) {
        return;
    }
    const uint32_t c = class_of(pages, slot);
    const moe_slot_class *class = &pages->arena->classes[c];
    const uint32_t n = slot - class->first_slot + 1;
    if (n > pages->taken[c]) {
        pages->taken[c] = n;
        moe_pages_ahead_filled(pages->ahead, c, n * class->slot_bytes);
    }
}

void moe_slot_pages_hurry(moe_slot_pages *pages, uint32_t slot)
{
    if (pages != NULL) {
        const uint32_t c = class_of(pages, slot);
        const moe_slot_class *class = &pages->arena->classes[c];
        moe_pages_ahead_hurry(pages->ahead, c, (slot - class->first_slot) * class->slot_bytes,
                              class->slot_bytes);
    }
}

void moe_slot_pages_stop(moe_slot_pages **pages)
{
    if (*pages != NULL) {
        moe_pages_ahead_stop(&(*pages)->ahead);
        free(*pages);
        *pages = NULL;
    }
}
