/* SPDX-License-Identifier: MIT */
/* The first part of the file closes and opens slots. The second part keeps the border's accounts,
 * which decide when to do so. Slots are closed between passes, in one of two ways:
 *
 *  RAM          slots are closed one by one, and their pages go back to the system. The kernel
 *               first releases pages that it had registered for reading. Page-locked memory
 *               cannot be freed in parts, so slots of such a tier stay open.
 *  a device     a run of neighbouring slots is closed, and its memory is reused in place, cut
 *               into parts, because a device frees memory only as a whole. A run and its parts
 *               are a loan.
 *
 * The policy names the coldest expert each time; size classes shrink in proportion. Of each size
 * class, as many slots stay open as a token uses experts in a layer. */
#include "offload/memory_border.h"

#include <stdlib.h>
#include <unistd.h>

#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define MIB 1048576.0

/* How many slots of a domain (the slots that some layers share) may be closed. */
static uint32_t n_closable(const moe_expert_store *store, const moe_cache_domain_size *d)
{
    MOE_ASSERT(d->n_open <= d->n_slots && d->n_pinned <= d->n_open);
    uint32_t least = store->options.per_layer ? 1 : store->options.n_expert_used;
    least = least > d->n_pinned ? least : d->n_pinned + 1;
    return d->n_open > least ? d->n_open - least : 0;
}

/* Whether the domain's slots are on the first card, which has the sessions. */
static bool is_near(const moe_slot_tier *tier, const moe_cache_domain_size *d)
{
    return tier->arena->classes[d->class_id].card == 0;
}

/* Finds the fullest domain in which a run may be closed; false if there is none. n_run: slots in a
 * run, by size class. */
static bool fullest_domain(const moe_expert_store *store, const moe_slot_tier *tier,
                           const uint32_t *n_run, uint32_t *fullest)
{
    double most = -1.0;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(tier->cache, d, &size); d++) {
        uint32_t n = n_run != NULL ? n_run[size.class_id] : 1;
        double share = (double)size.n_open / (double)size.n_slots;
        if (is_near(tier, &size) && n_closable(store, &size) >= n && share > most) {
            most = share;
            *fullest = d;
        }
    }
    return most >= 0.0;
}

/* Bytes that closing slots of a tier could free. */
static uint64_t spare_bytes(const moe_expert_store *store, const moe_slot_tier *tier)
{
    uint64_t bytes = 0;
    uint8_t *memory;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(tier->cache, d, &size); d++) {
        uint32_t first = tier->arena->classes[size.class_id].first_slot;
        uint32_t n = is_near(tier, &size) ? n_closable(store, &size) : 0;
        bytes += n * moe_slot_arena_pages(tier->arena, first, &memory);
    }
    return bytes;
}

/* Waits until no move is under way. If pins that only serve speed prevent closing, drops them. */
static int make_closable(moe_expert_store *store, const moe_slot_tier *tier, uint64_t bytes,
                         moe_error *err)
{
    MOE_TRY(moe_store_quiesce(store, err));
    if (spare_bytes(store, tier) < bytes) {
        moe_store_unprotect(store, MOE_ALL_LAYERS);
        moe_store_release_kept(store);
    }
    return MOE_OK;
}

/* ---- Slots in RAM ---- */

static void note_closed(moe_expert_store *store, uint32_t slot, bool closed)
{
    if (store->host != NULL) {
        moe_host_tier_note_closed(store->host, slot, closed);
    } else if (closed) {
        moe_store_close(store, slot, MOE_USE_CLOSED);
    } else {
        moe_store_reopen(store, slot);
    }
}

/* Whether the slot may be opened again: not if it is out of use for good. */
static bool may_open(const moe_expert_store *store, uint32_t slot)
{
    return store->host != NULL ? moe_host_tier_is_closed(store->host, slot)
                               : moe_store_use(store, slot) == MOE_USE_CLOSED;
}

static void reopen(moe_expert_store *store, uint32_t slot)
{
    note_closed(store, slot, false);
    moe_expert_cache_open_again(store->ram.cache, slot, 1);
}

static void open_slot(moe_expert_store *store, uint32_t slot)
{
    uint8_t *memory;
    size_t bytes = moe_slot_arena_pages(store->ram.arena, slot, &memory);
    (void)moe_mover_set_away(store->mover, memory, bytes, false);
    moe_slot_arena_take_back(store->ram.arena, slot);
    reopen(store, slot);
}

/* Closes one slot and returns its bytes, or 0 when no slot can be closed. */
static uint64_t close_slot(moe_expert_store *store)
{
    const moe_slot_tier *tier = &store->ram;
    uint32_t domain = 0;
    uint32_t slot;
    uint8_t *memory;
    if (!fullest_domain(store, tier, NULL, &domain) ||
        !moe_expert_cache_close(tier->cache, domain, 1, &slot)) {
        return 0;
    }
    size_t bytes = moe_slot_arena_pages(tier->arena, slot, &memory);
    note_closed(store, slot, true);
    if (!moe_mover_set_away(store->mover, memory, bytes, true)) {
        reopen(store, slot);
        return 0;
    }
    moe_slot_pages_stop(&store->pages);
    if (!moe_slot_arena_give_up(tier->arena, slot)) {
        open_slot(store, slot);
        return 0;
    }
    return bytes;
}

/* Finds a closed slot, in the domain with the smallest share of open slots that has one;
 * MOE_SLOT_NONE when all are open. */
static uint32_t find_closed(const moe_expert_store *store)
{
    uint32_t found = MOE_SLOT_NONE;
    uint32_t first = 0;
    double least = 1.0;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(store->ram.cache, d, &size); d++) {
        double share = (double)size.n_open / (double)size.n_slots;
        uint32_t end = first + size.n_slots;
        while (first < end && share < least && !may_open(store, first)) {
            first++;
        }
        if (first < end && share < least) {
            least = share;
            found = first;
        }
        first = end;
    }
    return found;
}

/* Opens closed slots again, with pages of at most `bytes` in all. Returns the bytes of the pages of
 * those it opened. */
static uint64_t open_slots(moe_expert_store *store, uint64_t bytes)
{
    uint64_t taken = 0;
    uint8_t *memory;
    for (uint32_t slot; (slot = find_closed(store)) != MOE_SLOT_NONE;) {
        size_t slot_bytes = moe_slot_arena_pages(store->ram.arena, slot, &memory);
        if (slot_bytes > bytes - taken) {
            break;
        }
        open_slot(store, slot);
        taken += slot_bytes;
    }
    MOE_ASSERT(taken <= bytes && moe_expert_store_is_sane(store));
    return taken;
}

/* Closes slots in RAM (the device's if it has no link, else the host tier's) until *freed is at
 * least `bytes`. If that is impossible: MOE_ERR_BUDGET, without a message. It then opens the slots
 * again; *freed is what stays closed, because slots of other sizes had been closed before. */
static int close_slots(moe_expert_store *store, uint64_t bytes, uint64_t *freed, moe_error *err)
{
    *freed = 0;
    if (!moe_slot_arena_shrinks(store->ram.arena)) {
        return MOE_ERR_BUDGET;
    }
    MOE_TRY(make_closable(store, &store->ram, bytes, err));
    uint64_t one = spare_bytes(store, &store->ram) >= bytes;
    while (*freed < bytes && one > 0) {
        one = close_slot(store);
        *freed += one;
    }
    MOE_ASSERT(moe_expert_store_is_sane(store));
    if (*freed < bytes) {
        *freed -= open_slots(store, *freed);
        return MOE_ERR_BUDGET;
    }
    return MOE_OK;
}

/* Pages of the RAM slots that are closed. */
static uint64_t closed_bytes(const moe_expert_store *store)
{
    const moe_slot_tier *tier = &store->ram;
    uint64_t bytes = 0;
    uint8_t *memory;
    for (uint32_t slot = 0; slot < tier->arena->n_slots; slot++) {
        if (may_open(store, slot)) {
            bytes += moe_slot_arena_pages(tier->arena, slot, &memory);
        }
    }
    return bytes;
}

/* ---- Slots of a device ---- */

/* How many slots of a class hold at least one part. */
static uint32_t run_of_class(const moe_slot_class *class, size_t bytes)
{
    MOE_ASSERT(bytes > 0);
    return (uint32_t)((bytes + class->slot_bytes - 1) / class->slot_bytes);
}

static uint32_t parts_of_run(const moe_slot_class *class, size_t bytes)
{
    uint64_t n = (uint64_t)run_of_class(class, bytes) * class->slot_bytes / bytes;
    return n < MOE_MOST_LOAN_PARTS ? (uint32_t)n : MOE_MOST_LOAN_PARTS;
}

static void *take_part(moe_expert_store *store)
{
    for (uint32_t i = 0; i < store->n_loans; i++) {
        moe_slot_loan *loan = &store->loans[i];
        for (uint32_t part = 0; part < loan->n_parts; part++) {
            if ((loan->used >> part & 1) == 0) {
                loan->used |= UINT64_C(1) << part;
                return loan->memory + part * loan->part_bytes;
            }
        }
    }
    return NULL;
}

static int grow_loans(moe_expert_store *store, moe_error *err)
{
    if (store->n_loans < store->loan_capacity) {
        return MOE_OK;
    }
    uint32_t capacity = 2 * store->loan_capacity + 8;
    moe_slot_loan *loans = moe_realloc_array(store->loans, capacity, sizeof *loans);
    if (loans == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a list of %u loans", capacity);
    }
    store->loans = loans;
    store->loan_capacity = capacity;
    return MOE_OK;
}

/* Closes a run of slots and makes it a loan whose parts are all free. MOE_ERR_BUDGET, without a
 * message, if no run can be closed. */
static int open_loan(moe_expert_store *store, size_t bytes, moe_error *err)
{
    moe_slot_tier tier = {&store->arena, store->cache};
    uint32_t *n_run = moe_calloc(store->arena.n_classes, sizeof *n_run);
    if (n_run == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a loan");
    }
    for (uint32_t c = 0; c < store->arena.n_classes; c++) {
        n_run[c] = run_of_class(&store->arena.classes[c], bytes);
    }
    uint32_t domain = 0;
    uint32_t first;
    moe_cache_domain_size size;
    bool any = fullest_domain(store, &tier, n_run, &domain);
    (void)moe_expert_cache_domain(store->cache, domain, &size);
    uint32_t n = n_run[size.class_id];
    free(n_run);
    if (!any || !moe_expert_cache_close(store->cache, domain, n, &first)) {
        return MOE_ERR_BUDGET;
    }
    for (uint32_t slot = first; slot < first + n; slot++) {
        moe_store_close(store, slot, MOE_USE_LENT);
    }
    MOE_ASSERT(store->n_loans < store->loan_capacity);
    store->loans[store->n_loans++] = (moe_slot_loan){
        .first = first,
        .n_run = n,
        .memory = moe_slot_arena_buffer(&store->arena, first, 0),
        .part_bytes = bytes,
        .n_parts = parts_of_run(&store->arena.classes[size.class_id], bytes),
    };
    return MOE_OK;
}

int moe_store_lend(moe_expert_store *store, size_t bytes, void **memory, moe_error *err)
{
    bytes = moe_align64(bytes);
    *memory = take_part(store);
    if (*memory != NULL) {
        return MOE_OK;
    }
    const moe_slot_tier tier = {&store->arena, store->cache};
    int status = make_closable(store, &tier, bytes, err);
    if (status == MOE_OK) {
        status = grow_loans(store, err);
    }
    if (status == MOE_OK) {
        status = open_loan(store, bytes, err);
    }
    *memory = status == MOE_OK ? take_part(store) : NULL;
    MOE_ASSERT((status == MOE_OK) == (*memory != NULL));
    MOE_ASSERT(moe_expert_store_is_sane(store));
    return status;
}

void moe_store_end_loan(moe_expert_store *store, void *memory)
{
    for (uint32_t i = 0; i < store->n_loans; i++) {
        moe_slot_loan *loan = &store->loans[i];
        /* A huge number if memory is below the loan. */
        size_t at = (uintptr_t)memory - (uintptr_t)loan->memory;
        if (at >= loan->n_parts * loan->part_bytes) {
            continue;
        }
        MOE_ASSERT(at % loan->part_bytes == 0 && (loan->used >> at / loan->part_bytes & 1) != 0);
        loan->used &= ~(UINT64_C(1) << at / loan->part_bytes);
        if (loan->used == 0) {
            for (uint32_t slot = loan->first; slot < loan->first + loan->n_run; slot++) {
                moe_store_reopen(store, slot);
            }
            moe_expert_cache_open_again(store->cache, loan->first, loan->n_run);
            *loan = store->loans[--store->n_loans];
        }
        MOE_ASSERT(moe_expert_store_is_sane(store));
        return;
    }
    MOE_ASSERT(!"the memory is of a loan");
}

/* ---- The accounts ---- */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t moe_memory_border_cost(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

uint64_t moe_memory_border_page_cost(const moe_device *device, uint64_t bytes)
{
    return device->link == NULL ? moe_memory_border_cost(bytes) : bytes;
}

/* A simulated device lies in RAM. What it takes beyond the plan's total is subtracted from the RAM
 * that is left. */
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

static int refuse(const char *where, uint64_t bytes, uint64_t free_bytes, uint64_t granted,
                  moe_error *err)
{
    return moe_fail(err, MOE_ERR_BUDGET,
                    "a session needs %.2f MiB more of %s, of which %.2f MiB are free and sessions "
                    "hold %.2f; the expert slots are at the least that works. End a session, "
                    "shorten texts, or raise the memory budget",
                    (double)bytes / MIB, where, (double)free_bytes / MIB, (double)granted / MIB);
}

int moe_memory_border_take(moe_memory_border *b, uint64_t bytes, moe_error *err)
{
    bytes = moe_memory_border_cost(bytes);
    if (bytes > b->ram_free) {
        uint64_t freed;
        int status = close_slots(*b->experts, bytes - b->ram_free, &freed, err);
        b->ram_free += freed;
        b->ram_taken += freed;
        if (status != MOE_OK) {
            return status == MOE_ERR_BUDGET ? refuse("RAM", bytes, b->ram_free, b->ram_granted, err)
                                            : status;
        }
    }
    MOE_ASSERT(b->ram_free >= bytes);
    b->ram_free -= bytes;
    b->ram_granted += bytes;
    MOE_ASSERT(b->ram_free + b->ram_granted == b->ram_at_open + b->ram_taken);
    return MOE_OK;
}

void moe_memory_border_give(moe_memory_border *b, uint64_t bytes)
{
    bytes = moe_memory_border_cost(bytes);
    MOE_ASSERT(b->ram_granted >= bytes);
    b->ram_free += bytes;
    b->ram_granted -= bytes;
}

void moe_memory_border_give_back(moe_memory_border *b)
{
    uint64_t taken = open_slots(*b->experts, min_u64(b->ram_free, b->ram_taken));
    MOE_ASSERT(taken <= b->ram_free && taken <= b->ram_taken);
    b->ram_free -= taken;
    b->ram_taken -= taken;
}

uint64_t moe_memory_border_yield(moe_memory_border *b, uint64_t bytes, int *status, moe_error *err)
{
    moe_expert_store *store = *b->experts;
    uint64_t freed = 0;
    *status = MOE_OK;
    if (moe_memory_border_yields(b)) {
        *status = make_closable(store, &store->ram, bytes, err);
        for (uint64_t one = *status == MOE_OK; freed < bytes && one > 0; freed += one) {
            one = close_slot(store);
        }
    }
    b->ram_yielded += freed;
    MOE_ASSERT(moe_expert_store_is_sane(store));
    return freed;
}

bool moe_memory_border_yields(const moe_memory_border *b)
{
    return moe_slot_arena_shrinks((*b->experts)->ram.arena);
}

uint64_t moe_memory_border_regain(moe_memory_border *b, uint64_t bytes)
{
    uint64_t opened = open_slots(*b->experts, min_u64(bytes, b->ram_yielded));
    b->ram_yielded -= opened;
    return opened;
}

/* ---- Pages of the KV cache ---- */

static int take_device_page(moe_memory_border *b, size_t bytes, void **memory, bool *lent,
                            moe_error *err)
{
    *lent = bytes > b->device_free;
    if (*lent) {
        int status = moe_store_lend(*b->experts, bytes, memory, err);
        b->device_lent += status == MOE_OK ? bytes : 0;
        return status == MOE_ERR_BUDGET ? refuse("device memory", bytes, b->device_free,
                                                 b->device_granted + b->device_lent, err)
                                        : status;
    }
    int status = b->device->ops->alloc(b->device, bytes, memory, err);
    b->device_free -= status == MOE_OK ? bytes : 0;
    b->device_granted += status == MOE_OK ? bytes : 0;
    return status;
}

int moe_memory_border_take_page(moe_memory_border *b, size_t bytes, void **memory, bool *lent,
                                moe_error *err)
{
    *memory = NULL;
    if (b->device->link != NULL) {
        return take_device_page(b, bytes, memory, lent, err);
    }
    *lent = false;
    MOE_TRY(moe_memory_border_take(b, bytes, err));
    int status = b->device->ops->alloc(b->device, bytes, memory, err);
    if (status != MOE_OK) {
        moe_memory_border_give(b, bytes);
    }
    return status;
}

void moe_memory_border_give_page(moe_memory_border *b, size_t bytes, void *memory, bool lent)
{
    if (lent) {
        /* Queued operations may still use the page, and the mover would fill the slots without
         * waiting for them. */
        (void)b->device->ops->sync(b->device, NULL);
        moe_store_end_loan(*b->experts, memory);
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
           closed_bytes(*b->experts) == b->ram_taken + b->ram_yielded;
}
