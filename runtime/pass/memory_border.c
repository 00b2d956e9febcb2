/* SPDX-License-Identifier: MIT */
#include "runtime/pass/memory_border.h"

#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

#define MIB 1048576.0

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t whole_pages(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* A simulated device lies in RAM. What it takes beyond the plan's total comes out of RAM's rest. */
static uint64_t device_rest(const moe_memory_plan *plan)
{
    uint64_t rest = plan->device_budget - plan->device_total;
    return plan->device_in_host > 0 ? min_u64(rest, plan->budget - plan->total) : rest;
}

uint64_t moe_memory_border_device_left(const moe_memory_plan *plan)
{
    return plan->has_device_memory ? plan->kv_cache + device_rest(plan) : 0;
}

uint64_t moe_memory_border_ram_left(const moe_memory_plan *plan)
{
    if (!plan->has_device_memory) {
        return plan->budget - (plan->process + plan->resident + plan->scratch + plan->expert_cache);
    }
    uint64_t left =
        plan->budget - (plan->process + plan->scratch + plan->host_cache + plan->device_in_host);
    return left - (plan->device_in_host > 0 ? device_rest(plan) : 0);
}

void moe_memory_border_open(moe_memory_border *border, moe_expert_store *const *experts,
                            moe_device *device, const moe_memory_plan *plan)
{
    uint64_t ram = moe_memory_border_ram_left(plan);
    uint64_t on_device = moe_memory_border_device_left(plan);
    *border = (moe_memory_border){.experts = experts,
                                  .device = device,
                                  .ram_at_open = ram,
                                  .ram_free = ram,
                                  .device_at_open = on_device,
                                  .device_free = on_device};
}

void moe_memory_border_seal(moe_memory_border *b, const moe_memory_plan *plan)
{
    uint64_t rest = plan->budget - plan->total;
    MOE_ASSERT(rest <= b->ram_free && b->ram_granted == 0);
    b->ram_at_open -= rest;
    b->ram_free -= rest;
}

/* ---- RAM ---- */

static int refuse(const moe_memory_border *b, const char *where, uint64_t bytes,
                  uint64_t free_bytes, uint64_t granted, moe_error *err)
{
    (void)b;
    return moe_fail(err, MOE_ERR_BUDGET,
                    "a session needs %.2f MiB more of %s, of which %.2f MiB are free and sessions "
                    "hold %.2f; the expert slots are at the least that works. End a session, "
                    "shorten texts, or raise the memory budget",
                    (double)bytes / MIB, where, (double)free_bytes / MIB, (double)granted / MIB);
}

int moe_memory_border_take(moe_memory_border *b, uint64_t bytes, moe_error *err)
{
    bytes = whole_pages(bytes);
    if (bytes > b->ram_free) {
        uint64_t freed = 0;
        moe_error why_not;
        int status = moe_expert_store_give_up(*b->experts, bytes - b->ram_free, &freed, &why_not);
        if (status == MOE_ERR_BUDGET) {
            return refuse(b, "RAM", bytes, b->ram_free, b->ram_granted, err);
        }
        if (status != MOE_OK) {
            return moe_fail(err, status, "%s", why_not.message);
        }
        b->ram_free += freed;
        b->ram_taken += freed;
    }
    MOE_ASSERT(b->ram_free >= bytes);
    b->ram_free -= bytes;
    b->ram_granted += bytes;
    MOE_ASSERT(b->ram_free + b->ram_granted == b->ram_at_open + b->ram_taken);
    return MOE_OK;
}

void moe_memory_border_give(moe_memory_border *b, uint64_t bytes)
{
    bytes = whole_pages(bytes);
    MOE_ASSERT(b->ram_granted >= bytes);
    b->ram_free += bytes;
    b->ram_granted -= bytes;
}

void moe_memory_border_give_back(moe_memory_border *b)
{
    uint64_t taken = moe_expert_store_take_back(*b->experts, min_u64(b->ram_free, b->ram_taken));
    MOE_ASSERT(taken <= b->ram_free && taken <= b->ram_taken);
    b->ram_free -= taken;
    b->ram_taken -= taken;
}

/* ---- Pages of the KV cache ---- */

static int take_device_page(moe_memory_border *b, size_t bytes, void **memory, bool *lent,
                            moe_error *err)
{
    *lent = bytes > b->device_free;
    int status;
    if (!*lent) {
        status = b->device->ops->alloc(b->device, bytes, memory, err);
        b->device_free -= status == MOE_OK ? bytes : 0;
        b->device_granted += status == MOE_OK ? bytes : 0;
        return status;
    }
    moe_error why_not;
    status = moe_expert_store_lend(*b->experts, bytes, memory, &why_not);
    if (status == MOE_ERR_BUDGET) {
        return refuse(b, "device memory", bytes, b->device_free, b->device_granted + b->device_lent,
                      err);
    }
    b->device_lent += status == MOE_OK ? bytes : 0;
    return status == MOE_OK ? MOE_OK : moe_fail(err, status, "%s", why_not.message);
}

int moe_memory_border_take_page(moe_memory_border *b, size_t bytes, void **memory, bool *lent,
                                moe_error *err)
{
    *memory = NULL;
    if (b->device->link != NULL) {
        return take_device_page(b, bytes, memory, lent, err);
    }
    *lent = false;
    int status = moe_memory_border_take(b, bytes, err);
    if (status != MOE_OK) {
        return status;
    }
    status = b->device->ops->alloc(b->device, bytes, memory, err);
    if (status != MOE_OK) {
        moe_memory_border_give(b, bytes);
    }
    return status;
}

void moe_memory_border_give_page(moe_memory_border *b, size_t bytes, void *memory, bool lent)
{
    if (lent) {
        /* Queued operations may still use the page, and the mover fills slots independently of the
         * queue. */
        (void)b->device->ops->sync(b->device, NULL);
        moe_expert_store_end_loan(*b->experts, memory);
        MOE_ASSERT(b->device_lent >= bytes);
        b->device_lent -= bytes;
        return;
    }
    b->device->ops->free(b->device, memory, bytes);
    if (b->device->link == NULL) {
        moe_memory_border_give(b, bytes);
    } else {
        MOE_ASSERT(b->device_granted >= bytes);
        b->device_free += bytes;
        b->device_granted -= bytes;
    }
}

bool moe_memory_border_check(const moe_memory_border *b)
{
    return b->ram_free + b->ram_granted == b->ram_at_open + b->ram_taken &&
           b->device_free + b->device_granted == b->device_at_open &&
           moe_expert_store_is_sane(*b->experts) &&
           moe_expert_store_closed_bytes(*b->experts) == b->ram_taken;
}
