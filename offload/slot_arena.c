/* SPDX-License-Identifier: MIT */
#include "offload/slot_arena.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

static bool same_sizes(const moe_slot_class *class, const moe_expert_ref *expert)
{
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        if (class->part_bytes[p] != expert->parts[p].size) {
            return false;
        }
    }
    return true;
}

static void add_class(moe_slot_arena *arena, const moe_expert_ref *expert, uint32_t card,
                      size_t (*buffer_bytes)(const void *context, uint64_t part_bytes),
                      const void *context)
{
    MOE_ASSERT(arena->n_classes < arena->n_layer);
    moe_slot_class *class = &arena->classes[arena->n_classes++];
    class->card = card;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        class->part_bytes[p] = expert->parts[p].size;
        class->buffer_offset[p] = class->slot_bytes;
        uint64_t size = expert->parts[p].size;
        class->slot_bytes += size > 0 ? buffer_bytes(context, size) : 0;
    }
}

int moe_slot_arena_init(moe_slot_arena *arena, moe_device *device, const moe_tensor_map *map,
                        const uint8_t *card_of_layer,
                        size_t (*buffer_bytes)(const void *context, uint64_t part_bytes),
                        const void *context, moe_error *err)
{
    *arena = (moe_slot_arena){.device = device, .n_layer = map->n_layer};
    arena->classes = moe_calloc(map->n_layer, sizeof *arena->classes);
    arena->class_of_layer = moe_calloc(map->n_layer, sizeof *arena->class_of_layer);
    if (arena->classes == NULL || arena->class_of_layer == NULL) {
        moe_slot_arena_free(arena);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the slots' size classes");
    }
    for (uint32_t l = 0; l < map->n_layer; l++) {
        const moe_expert_ref *experts = map->layers[l].experts;
        arena->class_of_layer[l] = UINT32_MAX;
        if (experts == NULL) {
            continue;
        }
        uint32_t card = card_of_layer != NULL ? card_of_layer[l] : 0;
        uint32_t c = 0;
        while (c < arena->n_classes &&
               (arena->classes[c].card != card || !same_sizes(&arena->classes[c], &experts[0]))) {
            c++;
        }
        if (c == arena->n_classes) {
            add_class(arena, &experts[0], card, buffer_bytes, context);
        }
        arena->class_of_layer[l] = c;
        arena->classes[c].n_experts += map->n_expert;
    }
    if (arena->n_classes == 0) {
        moe_slot_arena_free(arena);
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "the model has no experts");
    }
    return MOE_OK;
}

uint64_t moe_slot_arena_full_bytes(const moe_slot_arena *arena)
{
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        bytes += arena->classes[c].n_experts * arena->classes[c].slot_bytes;
    }
    return bytes;
}

uint64_t moe_slot_arena_largest_bytes(const moe_slot_arena *arena)
{
    uint64_t largest = 0;
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        uint64_t bytes = arena->classes[c].slot_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

/* Gives each class of a card one slot, then each class slots for the same share of its experts.
 * With the bytes that are left, gives one more slot to the classes with the smallest share. full:
 * bytes for all experts of the card's classes; floor: bytes of one slot for each class.
 * budget_bytes is at least `floor`. */
static void divide(moe_slot_arena *arena, uint32_t card, uint64_t budget_bytes, uint64_t full,
                   uint64_t floor)
{
    uint64_t left = budget_bytes < full ? budget_bytes : full;
    const uint64_t spare = left - floor;
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        moe_slot_class *class = &arena->classes[c];
        if (class->card != card) {
            continue;
        }
        uint64_t n = budget_bytes >= full ? class->n_experts : 1 + spare * class->n_experts / full;
        class->n_slots = (uint32_t)(n < class->n_experts ? n : class->n_experts);
        MOE_ASSERT(left >= class->n_slots * class->slot_bytes);
        left -= class->n_slots * class->slot_bytes;
    }
    moe_slot_class *least;
    do {
        least = NULL;
        for (uint32_t c = 0; c < arena->n_classes; c++) {
            moe_slot_class *class = &arena->classes[c];
            if (class->card == card && class->n_slots < class->n_experts &&
                class->slot_bytes <= left &&
                (least == NULL || (double)class->n_slots / (double)class->n_experts <
                                      (double)least->n_slots / (double)least->n_experts)) {
                least = class;
            }
        }
        if (least != NULL) {
            least->n_slots++;
            left -= least->slot_bytes;
        }
    } while (least != NULL);
}

/* A card's memory. */
static moe_slot_memory memory_of(const moe_slot_arena *arena, uint32_t card)
{
    if (card > 0 && card < MOE_MAX_CARDS) {
        return arena->more[card];
    }
    moe_slot_memory first = {arena->memory, arena->bytes};
    for (uint32_t k = 1; k < MOE_MAX_CARDS; k++) {
        first.bytes -= arena->more[k].bytes;
    }
    return first;
}

/* Divides the budget of one card. Slots are numbered from the arena's n_slots on. *bytes: out, the
 * bytes of the card's slots. */
static int share_out(moe_slot_arena *arena, uint32_t card, uint64_t budget_bytes, size_t *bytes,
                     moe_error *err)
{
    uint64_t full = 0;
    uint64_t floor = 0;
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        const moe_slot_class *class = &arena->classes[c];
        full += class->card == card ? class->n_experts * class->slot_bytes : 0;
        floor += class->card == card ? class->slot_bytes : 0;
    }
    if (budget_bytes < floor) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "%llu bytes are left for experts, but one of each size needs %llu; raise "
                        "the memory budget or lower the context",
                        (unsigned long long)budget_bytes, (unsigned long long)floor);
    }
    divide(arena, card, budget_bytes, full, floor);
    *bytes = 0;
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        moe_slot_class *class = &arena->classes[c];
        if (class->card != card) {
            continue;
        }
        class->arena_offset = *bytes;
        *bytes += class->n_slots * class->slot_bytes;
    }
    return MOE_OK;
}

static int allocate_card(moe_slot_arena *arena, uint32_t card, size_t bytes, moe_error *err)
{
    void *memory = NULL;
    moe_device *device = arena->device;
    int status = MOE_OK;
    if (bytes > 0) {
        status = arena->on_host ? device->link->host_alloc(device, bytes, &memory, err)
                                : moe_cards_alloc(device, card, bytes, &memory, err);
    }
    if (status == MOE_OK && card > 0 && card < MOE_MAX_CARDS) {
        arena->more[card] = (moe_slot_memory){memory, bytes};
        arena->bytes += bytes;
    } else if (status == MOE_OK) {
        arena->memory = memory;
        arena->bytes = bytes;
    }
    return status;
}

int moe_slot_arena_allocate(moe_slot_arena *arena, bool on_host, const uint64_t *budgets,
                            moe_error *err)
{
    MOE_ASSERT(arena->memory == NULL && arena->n_slots == 0 && arena->n_classes > 0);
    uint32_t n_cards = on_host ? 1 : moe_cards_n(arena->device);
    size_t bytes[MOE_MAX_CARDS];
    int status = MOE_OK;
    for (uint32_t k = 0; status == MOE_OK && k < n_cards; k++) {
        status = share_out(arena, k, budgets[k], &bytes[k], err);
    }
    if (status != MOE_OK) {
        return status;
    }
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        arena->classes[c].first_slot = arena->n_slots;
        arena->n_slots += arena->classes[c].n_slots;
    }
    arena->on_host = on_host;
    for (uint32_t k = 0; status == MOE_OK && k < n_cards; k++) {
        status = allocate_card(arena, k, bytes[k], err);
    }
    MOE_ASSERT(status != MOE_OK || moe_slot_arena_is_sane(arena));
    return status;
}

void moe_slot_arena_free(moe_slot_arena *arena)
{
    for (uint32_t k = 1; k < MOE_MAX_CARDS; k++) {
        if (arena->more[k].memory != NULL) {
            moe_cards_free(arena->device, k, arena->more[k].memory, arena->more[k].bytes);
        }
    }
    if (arena->memory != NULL && arena->on_host) {
        arena->device->link->host_free(arena->device, arena->memory, arena->bytes);
    } else if (arena->memory != NULL) {
        arena->device->ops->free(arena->device, arena->memory, memory_of(arena, 0).bytes);
    }
    free(arena->classes);
    free(arena->class_of_layer);
    *arena = (moe_slot_arena){0};
}

void moe_slot_arena_leave(moe_slot_arena *arena)
{
    arena->memory = NULL;
    memset(arena->more, 0, sizeof arena->more);
}

static const moe_slot_class *class_of_slot(const moe_slot_arena *arena, uint32_t slot)
{
    MOE_ASSERT(slot < arena->n_slots);
    uint32_t c = 0;
    while (slot >= arena->classes[c].first_slot + arena->classes[c].n_slots) {
        c++;
    }
    return &arena->classes[c];
}

uint8_t *moe_slot_arena_buffer(const moe_slot_arena *arena, uint32_t slot, int part)
{
    MOE_ASSERT(arena->memory != NULL && part >= 0 && part < MOE_EXPERT_PARTS);
    const moe_slot_class *class = class_of_slot(arena, slot);
    uint8_t *memory = class->card == 0 ? arena->memory : arena->more[class->card].memory;
    return memory + class->arena_offset + (size_t)(slot - class->first_slot) * class->slot_bytes +
           class->buffer_offset[part];
}

size_t moe_slot_arena_slot_bytes(const moe_slot_arena *arena, uint32_t slot)
{
    return class_of_slot(arena, slot)->slot_bytes;
}

size_t moe_slot_arena_pages(const moe_slot_arena *arena, uint32_t slot, uint8_t **memory)
{
    uintptr_t begin = (uintptr_t)moe_slot_arena_buffer(arena, slot, 0);
    uintptr_t end = begin + moe_slot_arena_slot_bytes(arena, slot);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (begin + page - 1) / page * page;
    uintptr_t last = end / page * page;
    *memory = (uint8_t *)first;
    return last > first ? last - first : 0;
}

bool moe_slot_arena_shrinks(const moe_slot_arena *arena)
{
    return !arena->on_host ? arena->device->link == NULL : arena->device->simulated;
}

bool moe_slot_arena_give_up(const moe_slot_arena *arena, uint32_t slot)
{
    uint8_t *memory;
    size_t bytes = moe_slot_arena_pages(arena, slot, &memory);
    moe_device *device = arena->device;
    return bytes > 0 && (arena->on_host ? device->link->host_give_up(device, memory, bytes)
                                        : device->ops->give_up(device, memory, bytes));
}

void moe_slot_arena_take_back(const moe_slot_arena *arena, uint32_t slot)
{
    MOE_ASSERT(moe_slot_arena_shrinks(arena));
    uint8_t *memory;
    size_t bytes = moe_slot_arena_pages(arena, slot, &memory);
    moe_device *device = arena->device;
    if (arena->on_host) {
        device->link->host_take_back(device, memory, bytes);
    } else {
        device->ops->take_back(device, memory, bytes);
    }
}

int moe_slot_arena_create_cache(const moe_slot_arena *arena, const moe_tensor_map *map,
                                moe_expert_cache_options *options, moe_expert_cache **cache,
                                moe_error *err)
{
    uint32_t *slots_of_class = moe_calloc(arena->n_classes, sizeof *slots_of_class);
    if (slots_of_class == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the expert cache");
    }
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        slots_of_class[c] = arena->classes[c].n_slots;
    }
    options->n_layer = map->n_layer;
    options->n_expert = map->n_expert;
    options->class_of_layer = arena->class_of_layer;
    options->n_classes = arena->n_classes;
    options->slots_of_class = slots_of_class;
    int status = moe_expert_cache_create(cache, options, err);
    free(slots_of_class);
    return status;
}

/* Checks that the buffers of a class's parts follow each other, aligned and long enough. */
static bool class_is_sane(const moe_slot_class *class)
{
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        size_t end = p + 1 < MOE_EXPERT_PARTS ? class->buffer_offset[p + 1] : class->slot_bytes;
        if (class->buffer_offset[p] % 64 != 0 || end < class->buffer_offset[p] ||
            end - class->buffer_offset[p] < class->part_bytes[p]) {
            return false;
        }
    }
    return class->buffer_offset[0] == 0 && class->slot_bytes % 64 == 0 && class->n_slots > 0 &&
           class->n_slots <= class->n_experts;
}

bool moe_slot_arena_is_sane(const moe_slot_arena *arena)
{
    uint32_t n_slots = 0;
    size_t bytes[MOE_MAX_CARDS] = {0};
    uint32_t n_layers = 0;
    for (uint32_t l = 0; l < arena->n_layer; l++) {
        if (arena->class_of_layer[l] >= arena->n_classes &&
            arena->class_of_layer[l] != UINT32_MAX) {
            return false;
        }
        n_layers += arena->class_of_layer[l] != UINT32_MAX;
    }
    for (uint32_t c = 0; c < arena->n_classes; c++) {
        const moe_slot_class *class = &arena->classes[c];
        if (!class_is_sane(class) || class->first_slot != n_slots || class->card >= MOE_MAX_CARDS ||
            class->arena_offset != bytes[class->card]) {
            return false;
        }
        n_slots += class->n_slots;
        bytes[class->card] += class->n_slots * class->slot_bytes;
    }
    for (uint32_t k = 0; k < MOE_MAX_CARDS; k++) {
        if (memory_of(arena, k).bytes != bytes[k]) {
            return false;
        }
    }
    return arena->n_classes > 0 && arena->n_classes <= n_layers && n_slots == arena->n_slots &&
           arena->device != NULL && arena->memory != NULL && (uintptr_t)arena->memory % 64 == 0;
}
