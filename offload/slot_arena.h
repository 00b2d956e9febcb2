/* SPDX-License-Identifier: MIT */
/* The memory of expert slots, on a device or in the host memory that its link reads. Layers form a
 * size class if the parts of their experts have the same sizes and their experts are on the same
 * card. Each class has a run of slots, and slots are numbered through the classes. A slot has a
 * buffer for each part, aligned and long enough for the aligned superset that direct I/O reads. */
#ifndef MOE_OFFLOAD_SLOT_ARENA_H
#define MOE_OFFLOAD_SLOT_ARENA_H

#include "cache/expert_cache.h"
#include "runtime/device/cards.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_slot_class {
    uint64_t part_bytes[MOE_EXPERT_PARTS];  /* bytes of an expert's parts */
    size_t buffer_offset[MOE_EXPERT_PARTS]; /* where each part begins in a slot */
    size_t slot_bytes;
    uint64_t n_experts; /* how many experts of the model are in this class */
    uint32_t n_slots;
    uint32_t first_slot;
    uint32_t card;       /* the device's card with the slots; 0 for host memory */
    size_t arena_offset; /* where the slots begin in the card's memory */
} moe_slot_class;

typedef struct moe_slot_memory {
    uint8_t *memory;
    size_t bytes;
} moe_slot_memory;

typedef struct moe_slot_arena {
    moe_device *device;
    moe_slot_class *classes;
    uint32_t n_classes;
    uint32_t *class_of_layer; /* UINT32_MAX: no experts */
    uint32_t n_layer;
    uint32_t n_slots;
    bool on_host;
    uint8_t *memory;                     /* slots of the first card, or in host memory */
    size_t bytes;                        /* all cards together */
    moe_slot_memory more[MOE_MAX_CARDS]; /* slots of further cards, by the card's number */
} moe_slot_arena;

/* Sorts layers into classes; allocates no slots yet. buffer_bytes() gives, for a part's bytes, the
 * size of its buffer (a multiple of 64). card_of_layer: [n_layer]; NULL: all layers are on the
 * first card. */
int moe_slot_arena_init(moe_slot_arena *arena, moe_device *device, const moe_tensor_map *map,
                        const uint8_t *card_of_layer,
                        size_t (*buffer_bytes)(const void *context, uint64_t part_bytes),
                        const void *context, moe_error *err);

/* Bytes of the slots if every expert had one. */
uint64_t moe_slot_arena_full_bytes(const moe_slot_arena *arena);

/* Bytes of the largest slot. */
uint64_t moe_slot_arena_largest_bytes(const moe_slot_arena *arena);

/* Allocates slots. Divides each card's budget (budgets: [cards], one for host memory) among its
 * classes in proportion to the bytes of their experts; each class gets at least one slot. The bytes
 * left over are too few for one more slot. on_host: allocates host memory that the device's link
 * reads. MOE_ERR_BUDGET: the budget is below the smallest possible, which the message names. */
int moe_slot_arena_allocate(moe_slot_arena *arena, bool on_host, const uint64_t *budgets,
                            moe_error *err);
void moe_slot_arena_free(moe_slot_arena *arena);
/* Makes free() leave the memory allocated. */
void moe_slot_arena_leave(moe_slot_arena *arena);

uint8_t *moe_slot_arena_buffer(const moe_slot_arena *arena, uint32_t slot, int part);
/* Bytes of the slot in the arena. */
size_t moe_slot_arena_slot_bytes(const moe_slot_arena *arena, uint32_t slot);

/* The whole pages inside the slot. *memory: out, where they begin; returns their bytes, 0 if there
 * are none. */
size_t moe_slot_arena_pages(const moe_slot_arena *arena, uint32_t slot, uint8_t **memory);
/* True when the system can take back pages of the slots: they are neither on a device nor
 * page-locked. */
bool moe_slot_arena_shrinks(const moe_slot_arena *arena);
/* Returns the slot's pages to the system; its bytes are lost. False: the device cannot. */
bool moe_slot_arena_give_up(const moe_slot_arena *arena, uint32_t slot);
/* Says that a slot that was given up will be used again. */
void moe_slot_arena_take_back(const moe_slot_arena *arena, uint32_t slot);

/* Creates a cache over the arena's slots. options: policy, seed and so on; this function fills in
 * the sizes. */
int moe_slot_arena_create_cache(const moe_slot_arena *arena, const moe_tensor_map *map,
                                moe_expert_cache_options *options, moe_expert_cache **cache,
                                moe_error *err);

/* Checks an allocated arena: classes follow each other, slots and bytes add up, and buffers are
 * aligned. O(layers + classes). */
bool moe_slot_arena_is_sane(const moe_slot_arena *arena);

#endif
