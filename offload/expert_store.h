/* SPDX-License-Identifier: MIT */
/* Where experts are, and how they get into memory. The store owns a fixed number of slots in the
 * device's memory, each as large as the largest expert; an expert is read from the model file into
 * a slot when it is first needed and stays until a least recently used slot has to make room.
 *
 *   absent --acquire--> loading --read--> ready(pinned) --release--> ready --evicted--> absent
 *
 * A pass that needs more experts of a layer than there are slots is worked off in waves: acquire()
 * pins as many as fit and says how many; the caller uses and releases them and asks for the rest.
 * Not thread-safe: one pass at a time. */
#ifndef MOE_OFFLOAD_EXPERT_STORE_H
#define MOE_OFFLOAD_EXPERT_STORE_H

#include "runtime/device/device.h"
#include "runtime/host/team.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_expert_store moe_expert_store;

typedef struct moe_expert_view {
    moe_weight parts[MOE_EXPERT_PARTS]; /* in the device's memory while the expert is pinned */
} moe_expert_view;

typedef struct moe_expert_store_stats {
    uint64_t hits;       /* acquired and already in memory */
    uint64_t misses;     /* acquired and read */
    uint64_t bytes_read; /* from the files */
    uint64_t n_slots;
    uint64_t slot_bytes;
    uint64_t n_resident; /* slots that hold an expert now */
} moe_expert_store_stats;

/* gguf, map, device and team must outlive the store. budget_bytes bounds the slots; 0: room for all
 * experts, or as many as the machine's free memory holds. MOE_ERR_BUDGET when not even one fits. */
int moe_expert_store_open(moe_expert_store **out, moe_device *device, moe_team *team,
                          const moe_gguf *gguf, const moe_tensor_map *map, uint64_t budget_bytes,
                          moe_error *err);
void moe_expert_store_close(moe_expert_store **store);

/* Pins the first *n_ready (>= 1) of n distinct experts of a layer and fills their views. */
int moe_expert_store_acquire(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                             uint32_t n, moe_expert_view *views, uint32_t *n_ready, moe_error *err);
/* Unpins what acquire() pinned. */
void moe_expert_store_release(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                              uint32_t n);

void moe_expert_store_get_stats(const moe_expert_store *store, moe_expert_store_stats *stats);

#endif
