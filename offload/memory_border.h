/* SPDX-License-Identifier: MIT */
/* Divides the memory that weights and scratch leave between sessions and expert slots. Sessions
 * take free memory first, then that of the coldest slots; a least number of slots always stays
 * open. Nothing is allocated before it is granted.
 *
 *    RAM      | process, weights, scratch | granted to sessions | free | open expert slots |
 *                                         |<------- granted + free ---->
 *                                          = what was free at open + pages of closed slots
 *
 * On a device with its own memory, KV pages are granted there in the same way. RAM is then granted
 * only for the rest of a session: its logits, its sampler, its tokens. */
#ifndef MOE_OFFLOAD_MEMORY_BORDER_H
#define MOE_OFFLOAD_MEMORY_BORDER_H

#include <moe/plan.h>
#include <moe/status.h>
#include <moe/types.h>

#include "offload/expert_store.h"
#include "runtime/device/device.h"

typedef struct moe_memory_border {
    /* Set at open, never changed. */
    moe_expert_store *const *experts; /* the engine's */
    moe_device *device;
    uint64_t ram_at_open;    /* free when the engine opened */
    uint64_t device_at_open; /* the same on a device with its own memory; otherwise 0 */
    /* Bytes. */
    uint64_t ram_free, ram_granted;
    /* Pages of slots that were closed for sessions; they are free or granted now. */
    uint64_t ram_taken;
    uint64_t ram_yielded; /* pages of slots that were closed for other programs */
    uint64_t device_free, device_granted;
    uint64_t device_lent; /* of the pages of the KV cache, those in closed slots */
} moe_memory_border;

void moe_memory_border_open(moe_memory_border *border, moe_expert_store *const *experts,
                            moe_device *device, const moe_memory_plan *plan);
/* Limits what may be granted to the plan's total. */
void moe_memory_border_seal(moe_memory_border *border, const moe_memory_plan *plan);
/* The RAM that sessions may get, by the plan, before slots are closed. */
uint64_t moe_memory_border_ram_left(const moe_memory_plan *plan);
uint64_t moe_memory_border_device_left(const moe_memory_plan *plan);

/* The bytes that a grant of RAM takes: whole pages of the system. */
uint64_t moe_memory_border_cost(uint64_t bytes);
/* The bytes that a page of the KV cache, or a state, takes on this device. */
uint64_t moe_memory_border_page_cost(const moe_device *device, uint64_t bytes);

/* Grants RAM to a session, or returns MOE_ERR_BUDGET and grants nothing. */
int moe_memory_border_take(moe_memory_border *border, uint64_t bytes, moe_error *err);
void moe_memory_border_give(moe_memory_border *border, uint64_t bytes);
/* Grants and allocates device memory for a page of the KV cache. *lent: out, the page lies in
 * closed expert slots. */
int moe_memory_border_take_page(moe_memory_border *border, size_t bytes, void **memory, bool *lent,
                                moe_error *err);
void moe_memory_border_give_page(moe_memory_border *border, size_t bytes, void *memory, bool lent);
/* Gives free memory back to expert slots: opens closed slots. */
void moe_memory_border_give_back(moe_memory_border *border);
/* Closes slots for other programs: slots with pages of `bytes` or a little more, or all slots that
 * may be closed. Returns the bytes of their pages. Call between layers or passes. *status: out, the
 * error of a wait. */
uint64_t moe_memory_border_yield(moe_memory_border *border, uint64_t bytes, int *status,
                                 moe_error *err);
/* Whether slots can be closed for other programs at all: not if they are page-locked. */
bool moe_memory_border_yields(const moe_memory_border *border);
/* Opens slots again that were closed for other programs, with pages of at most `bytes`. Returns
 * their bytes. */
uint64_t moe_memory_border_regain(moe_memory_border *border, uint64_t bytes);
/* Checks for tests that grants, free memory and slots add up. */
bool moe_memory_border_check(const moe_memory_border *border);

#endif
