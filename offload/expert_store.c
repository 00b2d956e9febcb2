/* SPDX-License-Identifier: MIT */
#include "offload/expert_store.h"

#include <stdlib.h>
#include <string.h>

#include "offload/file_read.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/host/memory_limits.h"

#define NO_SLOT UINT32_MAX
/* Part of the free memory left to the rest of the machine when no budget is given. */
#define HEADROOM_DIVISOR 8

typedef struct slot {
    uint32_t entry; /* layer * n_expert + expert, or NO_SLOT when empty */
    uint32_t n_pins;
    uint32_t older, newer; /* the list of use, oldest first */
} slot;

struct moe_expert_store {
    /* Set at open, never changed. */
    moe_device *device;
    moe_team *team;
    const moe_gguf *gguf;
    const moe_tensor_map *map;
    uint32_t n_slots;
    size_t slot_bytes;
    uint8_t *arena; /* device, [n_slots][slot_bytes] */

    /* Changed by acquire and release. */
    slot *slots;
    uint32_t *slot_of; /* [n_layer * n_expert] */
    uint32_t oldest, newest;
    uint32_t *missing; /* scratch: positions in the acquired list, [n_expert] */
    moe_expert_store_stats stats;
};

static size_t align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static size_t part_offset(const moe_expert_ref *expert, int part)
{
    size_t offset = 0;
    for (int p = 0; p < part; p++) {
        offset += align64(expert->parts[p].size);
    }
    return offset;
}

static size_t largest_expert(const moe_tensor_map *map)
{
    size_t largest = 0;
    for (uint32_t l = 0; l < map->n_layer; l++) {
        for (uint32_t e = 0; map->layers[l].experts != NULL && e < map->n_expert; e++) {
            size_t bytes = part_offset(&map->layers[l].experts[e], MOE_EXPERT_PARTS);
            largest = bytes > largest ? bytes : largest;
        }
    }
    return largest;
}

static uint64_t count_experts(const moe_tensor_map *map)
{
    uint64_t n = 0;
    for (uint32_t l = 0; l < map->n_layer; l++) {
        n += map->layers[l].experts != NULL ? map->n_expert : 0;
    }
    return n;
}

static int choose_slots(moe_expert_store *store, uint64_t budget_bytes, moe_error *err)
{
    store->slot_bytes = largest_expert(store->map);
    uint64_t n_all = count_experts(store->map);
    if (n_all == 0) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the model has no experts");
    }
    if (budget_bytes == 0) {
        uint64_t available = moe_memory_available();
        budget_bytes = available - available / HEADROOM_DIVISOR;
    }
    uint64_t n = budget_bytes / store->slot_bytes;
    if (n == 0) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "%llu bytes for experts hold not one expert of %zu bytes; free some memory",
                        (unsigned long long)budget_bytes, store->slot_bytes);
    }
    n = n < n_all ? n : n_all;
    store->n_slots = (uint32_t)(n < NO_SLOT ? n : NO_SLOT - 1);
    return MOE_OK;
}

static void unlink_slot(moe_expert_store *store, uint32_t index)
{
    slot *s = &store->slots[index];
    if (s->older != NO_SLOT) {
        store->slots[s->older].newer = s->newer;
    } else {
        store->oldest = s->newer;
    }
    if (s->newer != NO_SLOT) {
        store->slots[s->newer].older = s->older;
    } else {
        store->newest = s->older;
    }
}

static void append_newest(moe_expert_store *store, uint32_t index)
{
    slot *s = &store->slots[index];
    s->older = store->newest;
    s->newer = NO_SLOT;
    if (store->newest != NO_SLOT) {
        store->slots[store->newest].newer = index;
    } else {
        store->oldest = index;
    }
    store->newest = index;
}

static int allocate_tables(moe_expert_store *store, moe_error *err)
{
    size_t n_entries = (size_t)store->map->n_layer * store->map->n_expert;
    store->slots = moe_calloc(store->n_slots, sizeof *store->slots);
    store->slot_of = moe_calloc(n_entries, sizeof *store->slot_of);
    store->missing = moe_calloc(store->map->n_expert, sizeof *store->missing);
    if (store->slots == NULL || store->slot_of == NULL || store->missing == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the tables of %zu experts", n_entries);
    }
    memset(store->slot_of, 0xff, n_entries * sizeof *store->slot_of);
    store->oldest = store->newest = NO_SLOT;
    for (uint32_t i = 0; i < store->n_slots; i++) {
        store->slots[i].entry = NO_SLOT;
        append_newest(store, i);
    }
    void *arena;
    int status =
        store->device->ops->alloc(store->device, store->n_slots * store->slot_bytes, &arena, err);
    store->arena = status == MOE_OK ? arena : NULL;
    return status;
}

int moe_expert_store_open(moe_expert_store **out, moe_device *device, moe_team *team,
                          const moe_gguf *gguf, const moe_tensor_map *map, uint64_t budget_bytes,
                          moe_error *err)
{
    *out = NULL;
    moe_expert_store *store = moe_calloc(1, sizeof *store);
    if (store == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert store");
    }
    store->device = device;
    store->team = team;
    store->gguf = gguf;
    store->map = map;
    int status = choose_slots(store, budget_bytes, err);
    if (status == MOE_OK) {
        status = allocate_tables(store, err);
    }
    if (status != MOE_OK) {
        moe_expert_store_close(&store);
        return status;
    }
    store->stats.n_slots = store->n_slots;
    store->stats.slot_bytes = store->slot_bytes;
    *out = store;
    return MOE_OK;
}

void moe_expert_store_close(moe_expert_store **store_ptr)
{
    moe_expert_store *store = *store_ptr;
    if (store == NULL) {
        return;
    }
    if (store->arena != NULL) {
        store->device->ops->free(store->device, store->arena, store->n_slots * store->slot_bytes);
    }
    free(store->slots);
    free(store->slot_of);
    free(store->missing);
    free(store);
    *store_ptr = NULL;
}

/* The least recently used slot that nothing pins, emptied; NO_SLOT when all are pinned. */
static uint32_t evict(moe_expert_store *store)
{
    for (uint32_t i = store->oldest; i != NO_SLOT; i = store->slots[i].newer) {
        slot *s = &store->slots[i];
        if (s->n_pins == 0) {
            if (s->entry != NO_SLOT) {
                store->slot_of[s->entry] = NO_SLOT;
                s->entry = NO_SLOT;
                store->stats.n_resident--;
            }
            return i;
        }
    }
    return NO_SLOT;
}

typedef struct load_job {
    moe_expert_store *store;
    uint32_t layer;
    const uint32_t *experts;
    uint32_t n_parts; /* missing experts times their parts */
    moe_task_queue queue;
    _Atomic int status;
    moe_error error; /* of the first failure */
    _Atomic uint64_t bytes;
} load_job;

static void load_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    load_job *job = arg;
    moe_expert_store *store = job->store;
    for (uint32_t t; (t = moe_task_next(&job->queue)) < job->n_parts;) {
        uint32_t id = job->experts[store->missing[t / MOE_EXPERT_PARTS]];
        int part = (int)(t % MOE_EXPERT_PARTS);
        const moe_expert_ref *expert = &store->map->layers[job->layer].experts[id];
        const moe_tensor_ref *ref = &expert->parts[part];
        uint32_t index = store->slot_of[(size_t)job->layer * store->map->n_expert + id];
        uint8_t *dst = store->arena + index * store->slot_bytes + part_offset(expert, part);
        moe_error error;
        int status = moe_file_read(moe_gguf_file_at(store->gguf, ref->file_index), ref->offset, dst,
                                   ref->size, &error);
        if (status == MOE_OK) {
            atomic_fetch_add(&job->bytes, ref->size);
            continue;
        }
        int expected = MOE_OK;
        if (atomic_compare_exchange_strong(&job->status, &expected, status)) {
            moe_fail(&job->error, status, "layer %u, expert %u: %.400s", job->layer, id,
                     error.message);
        }
    }
}

static int load_missing(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                        uint32_t n_missing, moe_error *err)
{
    load_job job = {.store = store,
                    .layer = layer,
                    .experts = experts,
                    .n_parts = n_missing * MOE_EXPERT_PARTS};
    moe_team_run(store->team, load_parts, &job);
    store->stats.bytes_read += job.bytes;
    if (job.status != MOE_OK && err != NULL) {
        *err = job.error;
    }
    return job.status;
}

static void fill_view(const moe_expert_store *store, uint32_t layer, uint32_t id,
                      moe_expert_view *view)
{
    const moe_expert_ref *expert = &store->map->layers[layer].experts[id];
    uint32_t index = store->slot_of[(size_t)layer * store->map->n_expert + id];
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *ref = &expert->parts[p];
        view->parts[p] = (moe_weight){
            .type = ref->type,
            .data = store->arena + index * store->slot_bytes + part_offset(expert, p),
            .n_in = (uint32_t)ref->n_in,
            .n_out = (uint32_t)ref->n_out,
            .row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in),
        };
    }
}

/* Gives an expert a slot, its own or a free one, and pins it. */
static bool pin_expert(moe_expert_store *store, uint32_t entry, bool *was_resident)
{
    uint32_t index = store->slot_of[entry];
    *was_resident = index != NO_SLOT;
    if (index == NO_SLOT) {
        index = evict(store);
        if (index == NO_SLOT) {
            return false;
        }
        store->slots[index].entry = entry;
        store->slot_of[entry] = index;
        store->stats.n_resident++;
    }
    store->slots[index].n_pins++;
    unlink_slot(store, index);
    append_newest(store, index);
    return true;
}

/* After a failed read nothing in the slots of this wave may count as an expert. */
static void drop_missing(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                         uint32_t n_missing)
{
    for (uint32_t i = 0; i < n_missing; i++) {
        size_t entry = (size_t)layer * store->map->n_expert + experts[store->missing[i]];
        slot *s = &store->slots[store->slot_of[entry]];
        s->n_pins = 0;
        s->entry = NO_SLOT;
        store->slot_of[entry] = NO_SLOT;
        store->stats.n_resident--;
    }
}

int moe_expert_store_acquire(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                             uint32_t n, moe_expert_view *views, uint32_t *n_ready, moe_error *err)
{
    uint32_t n_missing = 0;
    uint32_t n_pinned = 0;
    for (; n_pinned < n; n_pinned++) {
        size_t entry = (size_t)layer * store->map->n_expert + experts[n_pinned];
        bool was_resident;
        if (!pin_expert(store, (uint32_t)entry, &was_resident)) {
            break;
        }
        if (!was_resident) {
            store->missing[n_missing++] = n_pinned;
        }
    }
    *n_ready = n_pinned;
    if (n_pinned == 0 && n > 0) {
        return moe_fail(err, MOE_ERR_INTERNAL, "every expert slot is pinned");
    }
    int status = n_missing > 0 ? load_missing(store, layer, experts, n_missing, err) : MOE_OK;
    if (status != MOE_OK) {
        *n_ready = 0;
        drop_missing(store, layer, experts, n_missing);
        for (uint32_t i = 0; i < n_pinned; i++) {
            uint32_t index = store->slot_of[(size_t)layer * store->map->n_expert + experts[i]];
            if (index != NO_SLOT) {
                store->slots[index].n_pins--;
            }
        }
        return status;
    }
    store->stats.misses += n_missing;
    store->stats.hits += n_pinned - n_missing;
    for (uint32_t i = 0; i < n_pinned; i++) {
        fill_view(store, layer, experts[i], &views[i]);
    }
    return MOE_OK;
}

void moe_expert_store_release(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                              uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        store->slots[store->slot_of[(size_t)layer * store->map->n_expert + experts[i]]].n_pins--;
    }
}

void moe_expert_store_get_stats(const moe_expert_store *store, moe_expert_store_stats *stats)
{
    *stats = store->stats;
}
