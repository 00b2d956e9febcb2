/* SPDX-License-Identifier: MIT */
/* Moves the border between expert slots and other uses of memory, chiefly the KV cache. This
 * happens between passes, in one of two ways:
 *
 *  RAM          slots are closed one by one and their pages go back to the system. The kernel
 *               first releases pages that it had registered for reading. Page-locked memory
 *               cannot be freed in parts, so a page-locked tier gives up nothing.
 *  a device     a run of neighbouring slots is closed and its memory is reused in place, cut
 *               into parts, because a device frees memory only as a whole.
 *
 * The policy nominates the coldest expert each time, and size classes shrink in proportion. */
#include <stdlib.h>

#include "offload/expert_store_state.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* How many slots of a domain may be closed. */
static uint32_t n_closable(const moe_expert_store *store, const moe_cache_domain_size *d)
{
    MOE_ASSERT(d->n_open <= d->n_slots && d->n_pinned <= d->n_open);
    uint32_t least = store->options.per_layer ? 1 : store->options.n_expert_used;
    least = least > d->n_pinned ? least : d->n_pinned + 1;
    return d->n_open > least ? d->n_open - least : 0;
}

/* Finds the fullest domain of which a run may be closed; false if there is none. n_run: by size
 * class. */
static bool fullest_domain(const moe_expert_store *store, const moe_slot_tier *tier,
                           const uint32_t *n_run, uint32_t *fullest)
{
    double most = -1.0;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(tier->cache, d, &size); d++) {
        uint32_t n = n_run != NULL ? n_run[size.class_id] : 1;
        double share = (double)size.n_open / (double)size.n_slots;
        if (n_closable(store, &size) >= n && share > most) {
            most = share;
            *fullest = d;
        }
    }
    return most >= 0.0;
}

/* ---- RAM ---- */

static uint64_t spare_bytes(const moe_expert_store *store, const moe_slot_tier *tier)
{
    uint64_t bytes = 0;
    uint8_t *memory;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(tier->cache, d, &size); d++) {
        uint32_t first = tier->arena->classes[size.class_id].first_slot;
        bytes += n_closable(store, &size) * moe_slot_arena_pages(tier->arena, first, &memory);
    }
    return bytes;
}

uint64_t moe_expert_store_spare(const moe_expert_store *store)
{
    moe_slot_tier tier = store->ram;
    return moe_slot_arena_shrinks(tier.arena) ? spare_bytes(store, &tier) : 0;
}

static void open_slot(moe_expert_store *store, const moe_slot_tier *tier, uint32_t slot)
{
    uint8_t *memory;
    size_t bytes = moe_slot_arena_pages(tier->arena, slot, &memory);
    (void)moe_mover_set_away(store->mover, memory, bytes, false);
    moe_slot_arena_take_back(tier->arena, slot);
    moe_expert_cache_open_again(tier->cache, slot, 1);
}

/* Closes one slot and returns its bytes, or 0 when no slot can be closed. */
static uint64_t give_up_one(moe_expert_store *store, const moe_slot_tier *tier)
{
    uint32_t domain = 0;
    uint32_t slot;
    uint8_t *memory;
    if (!fullest_domain(store, tier, NULL, &domain) ||
        !moe_expert_cache_close(tier->cache, domain, 1, &slot)) {
        return 0;
    }
    size_t bytes = moe_slot_arena_pages(tier->arena, slot, &memory);
    if (store->host == NULL) {
        moe_mover_reset(store->mover, slot);
    }
    if (!moe_mover_set_away(store->mover, memory, bytes, true)) {
        moe_expert_cache_open_again(tier->cache, slot, 1);
        return 0;
    }
    if (!moe_slot_arena_give_up(tier->arena, slot)) {
        open_slot(store, tier, slot);
        return 0;
    }
    return bytes;
}

static int refuse(uint64_t bytes, uint64_t spare, moe_error *err)
{
    return moe_fail(err, MOE_ERR_BUDGET,
                    "%llu bytes more are needed, but the expert slots can give up %llu",
                    (unsigned long long)bytes, (unsigned long long)spare);
}

/* Waits until nothing is under way, and drops pins that only serve speed if they are in the way. */
static int make_closable(moe_expert_store *store, const moe_slot_tier *tier, uint64_t bytes,
                         moe_error *err)
{
    moe_store_stop_warming(store);
    int status = moe_store_quiesce(store, err);
    if (status == MOE_OK && spare_bytes(store, tier) < bytes) {
        moe_store_unprotect(store, MOE_ALL_LAYERS);
        moe_store_release_kept(store);
    }
    return status;
}

int moe_expert_store_give_up(moe_expert_store *store, uint64_t bytes, uint64_t *freed,
                             moe_error *err)
{
    moe_slot_tier tier = store->ram;
    *freed = 0;
    int status = make_closable(store, &tier, bytes, err);
    if (status != MOE_OK) {
        return status;
    }
    uint64_t spare = moe_expert_store_spare(store);
    uint64_t one = spare >= bytes;
    while (*freed < bytes && one > 0) {
        one = give_up_one(store, &tier);
        *freed += one;
    }
    MOE_ASSERT(moe_expert_store_is_sane(store));
    if (*freed < bytes) {
        (void)moe_expert_store_take_back(store, *freed);
        *freed = 0;
        return refuse(bytes, spare, err);
    }
    return MOE_OK;
}

/* Finds a closed slot of the emptiest domain; MOE_SLOT_NONE when all are open. */
static uint32_t find_closed(const moe_slot_tier *tier)
{
    uint32_t found = MOE_SLOT_NONE;
    uint32_t first = 0;
    double least = 1.0;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(tier->cache, d, &size); d++) {
        double share = (double)size.n_open / (double)size.n_slots;
        if (share < least) {
            least = share;
            found = first;
        }
        first += size.n_slots;
    }
    while (found != MOE_SLOT_NONE && !moe_expert_cache_is_closed(tier->cache, found)) {
        found++;
    }
    return found;
}

uint64_t moe_expert_store_take_back(moe_expert_store *store, uint64_t bytes)
{
    moe_slot_tier tier = store->ram;
    uint64_t taken = 0;
    uint8_t *memory;
    for (uint32_t slot; (slot = find_closed(&tier)) != MOE_SLOT_NONE;) {
        size_t slot_bytes = moe_slot_arena_pages(tier.arena, slot, &memory);
        if (slot_bytes > bytes - taken) {
            break;
        }
        open_slot(store, &tier, slot);
        taken += slot_bytes;
    }
    MOE_ASSERT(taken <= bytes && moe_expert_store_is_sane(store));
    return taken;
}

uint64_t moe_expert_store_closed_bytes(const moe_expert_store *store)
{
    moe_slot_tier tier = store->ram;
    uint64_t bytes = 0;
    uint8_t *memory;
    for (uint32_t slot = 0; slot < tier.arena->n_slots; slot++) {
        if (moe_expert_cache_is_closed(tier.cache, slot)) {
            bytes += moe_slot_arena_pages(tier.arena, slot, &memory);
        }
    }
    return bytes;
}

/* ---- A device ---- */

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

uint64_t moe_expert_store_n_lendable(const moe_expert_store *store, size_t bytes)
{
    uint64_t n = 0;
    moe_cache_domain_size size;
    for (uint32_t d = 0; moe_expert_cache_domain(store->cache, d, &size); d++) {
        const moe_slot_class *class = &store->arena.classes[size.class_id];
        n += (uint64_t)(n_closable(store, &size) / run_of_class(class, bytes)) *
             parts_of_run(class, bytes);
    }
    for (uint32_t i = 0; i < store->n_loans; i++) {
        n += store->loans[i].n_parts - (uint32_t)__builtin_popcountll(store->loans[i].used);
    }
    return n;
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

/* Closes a run and makes it a loan, of which no part is used yet. */
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
        return refuse(bytes, 0, err);
    }
    for (uint32_t slot = first; slot < first + n; slot++) {
        moe_mover_reset(store->mover, slot);
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

int moe_expert_store_lend(moe_expert_store *store, size_t bytes, void **memory, moe_error *err)
{
    bytes = moe_align64(bytes);
    *memory = take_part(store);
    if (*memory != NULL) {
        return MOE_OK;
    }
    moe_slot_tier tier = {&store->arena, store->cache};
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

void moe_expert_store_end_loan(moe_expert_store *store, void *memory)
{
    for (uint32_t i = 0; i < store->n_loans; i++) {
        moe_slot_loan *loan = &store->loans[i];
        size_t at = (uintptr_t)memory - (uintptr_t)loan->memory; /* beyond the loan's end if memory
                                                                  * is below it */
        if (at >= loan->n_parts * loan->part_bytes) {
            continue;
        }
        MOE_ASSERT(at % loan->part_bytes == 0 && (loan->used >> at / loan->part_bytes & 1) != 0);
        loan->used &= ~(UINT64_C(1) << at / loan->part_bytes);
        if (loan->used == 0) {
            moe_expert_cache_open_again(store->cache, loan->first, loan->n_run);
            *loan = store->loans[--store->n_loans];
        }
        MOE_ASSERT(moe_expert_store_is_sane(store));
        return;
    }
    MOE_ASSERT(!"the memory is of a loan");
}
