/* SPDX-License-Identifier: MIT */
/* Who has the memory that weights and scratch leave: sessions or expert slots. Sessions take what
 * is free, then the coldest slots, down to the floor; nothing is allocated before it is granted.
 *
 *     RAM      | process, weights, scratch | granted to sessions | free | open expert slots |
 *                                          |<------- granted + free ---->
 *                                           = what was free at open + pages of closed slots
 *
 * On a device with memory of its own the KV pages are granted there, likewise, and RAM is granted
 * for the rest of a session: its logits, its sampler, its tokens. */
#ifndef MOE_PASS_MEMORY_BORDER_H
#define MOE_PASS_MEMORY_BORDER_H

#include <moe/moe.h>

#include "offload/expert_store.h"
#include "runtime/device/device.h"

typedef struct moe_memory_border {
    /* Set at open, never changed. */
    moe_expert_store *const *experts; /* the engine's */
    moe_device *device;
    uint64_t ram_at_open;    /* free then */
    uint64_t device_at_open; /* on a device with memory of its own, else 0 */
    /* Bytes. */
    uint64_t ram_free, ram_granted;
    uint64_t ram_taken; /* pages of closed slots, which are free or granted now */
    uint64_t device_free, device_granted;
    uint64_t device_lent; /* pages of the KV cache that lie in closed slots */
} moe_memory_border;

void moe_memory_border_open(moe_memory_border *border, moe_expert_store *const *experts,
                            moe_device *device, const moe_memory_plan *plan);
/* Of the budget, no more than the plan's total is to be used. */
void moe_memory_border_seal(moe_memory_border *border, const moe_memory_plan *plan);
/* What the plan leaves to sessions before slots give anything up. */
uint64_t moe_memory_border_ram_left(const moe_memory_plan *plan);
uint64_t moe_memory_border_device_left(const moe_memory_plan *plan);

/* RAM for a session; MOE_ERR_BUDGET: nothing has changed. */
int moe_memory_border_take(moe_memory_border *border, uint64_t bytes, moe_error *err);
void moe_memory_border_give(moe_memory_border *border, uint64_t bytes);
/* Memory of the device for a page of the KV cache. *lent: it lies in expert slots. */
int moe_memory_border_take_page(moe_memory_border *border, size_t bytes, void **memory, bool *lent,
                                moe_error *err);
void moe_memory_border_give_page(moe_memory_border *border, size_t bytes, void *memory, bool lent);
/* Expert slots take back what is free. */
void moe_memory_border_settle(moe_memory_border *border);
/* Assert of tests: grants, free memory and slots add up. */
bool moe_memory_border_check(const moe_memory_border *border);

#endif
