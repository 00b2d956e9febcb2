/* SPDX-License-Identifier: MIT */
/* The tier between a device with a link and the files: expert slots in host memory, with a cache
 * policy of their own. An expert's host slot is pinned while something uses it: a read into it, a
 * copy from it, a computation on it. Used by the expert store only, on its thread. */
#ifndef MOE_OFFLOAD_HOST_TIER_H
#define MOE_OFFLOAD_HOST_TIER_H

#include "cache/expert_cache.h"
#include "offload/mover.h"
#include "offload/slot_arena.h"

typedef struct moe_host_tier moe_host_tier;

typedef struct moe_host_tier_options {
    moe_device *device; /* whose link reads the slots */
    const moe_tensor_map *map;
    uint32_t n_expert_used;
    uint64_t budget_bytes;
    const moe_policy *policy;
    const float *hotness; /* or NULL */
    uint64_t seed;
    /* Bytes of a part's buffer, as in slot_arena.h. */
    size_t (*buffer_bytes)(const void *context, uint64_t part_bytes);
    const void *context;
} moe_host_tier_options;

typedef struct moe_host_tier_stats {
    uint64_t hits, misses; /* experts that the device asked for: in host memory, to be read */
    uint64_t n_slots, slot_bytes_total, n_resident;
    uint64_t policy_faults;
} moe_host_tier_stats;

int moe_host_tier_open(moe_host_tier **out, const moe_host_tier_options *options, moe_error *err);
void moe_host_tier_close(moe_host_tier **tier);
/* close() leaves the slots' memory allocated. */
void moe_host_tier_leave(moe_host_tier *tier);

/* Pins the expert and says in move where its bytes are, or are to be read to. False when every slot
 * is pinned. A prefetch is no access to the policy, unless it inserts. */
bool moe_host_tier_take(moe_host_tier *tier, uint32_t key, const moe_policy_access *access,
                        bool prefetch, moe_move *move);
/* What take() was for is over, or was cancelled; data is where the parts are, NULL entries when
 * they were not read. */
void moe_host_tier_settle(moe_host_tier *tier, uint32_t key,
                          const uint8_t *const data[MOE_EXPERT_PARTS]);

/* In host memory, complete. */
bool moe_host_tier_has(const moe_host_tier *tier, uint32_t key);
/* Pins one that has() holds of, until release(). */
void moe_host_tier_hold(moe_host_tier *tier, uint32_t key, const moe_policy_access *access);
/* Where the parts of one that is held are. */
const uint8_t *const *moe_host_tier_data(const moe_host_tier *tier, uint32_t key);
void moe_host_tier_release(moe_host_tier *tier, uint32_t key);
/* The slots' memory. */
const moe_slot_arena *moe_host_tier_arena(const moe_host_tier *tier);
/* Which experts the slots hold. */
moe_expert_cache *moe_host_tier_cache(const moe_host_tier *tier);
/* Slots in use that experts of a layer share. */
uint32_t moe_host_tier_slots_of(const moe_host_tier *tier, uint32_t layer);

void moe_host_tier_end_pass(moe_host_tier *tier, uint64_t pass);
void moe_host_tier_get_stats(const moe_host_tier *tier, moe_host_tier_stats *stats);

#endif
