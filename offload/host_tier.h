/* SPDX-License-Identifier: MIT */
/* The tier between the files and a device with a link: expert slots in host memory, with a cache
 * policy of their own. An expert's host slot is pinned while something uses it: a read into it, a
 * copy from it, a computation on it. Only the expert store uses it, on its thread. */
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
    /* Gives the size of a part's buffer, as in slot_arena.h. */
    size_t (*buffer_bytes)(const void *context, uint64_t part_bytes);
    const void *context;
} moe_host_tier_options;

typedef struct moe_host_tier_stats {
    /* Experts that the device requested: those in host memory; those read from disk. */
    uint64_t hits, misses;
    /* Hits on experts that were saved from the device since they were last read. */
    uint64_t hits_saved;
    uint64_t n_slots, slot_bytes_total, n_resident;
    uint64_t policy_faults;
} moe_host_tier_stats;

int moe_host_tier_open(moe_host_tier **out, const moe_host_tier_options *options, moe_error *err);
void moe_host_tier_close(moe_host_tier **tier);
/* Makes close() leave the slots' memory allocated. */
void moe_host_tier_leave(moe_host_tier *tier);

/* Pins the expert and says in *move where its bytes are, or where to read them to. False when every
 * slot is pinned, or while the expert's bytes are being saved. For the policy a prefetch is an
 * access only if it inserts the expert. */
bool moe_host_tier_take(moe_host_tier *tier, uint32_t key, const moe_policy_access *access,
                        bool prefetch, moe_move *move);
/* Ends the use that take() began, whether completed or cancelled. data: where the parts are;
 * entries are NULL if the parts were not read. */
void moe_host_tier_settle(moe_host_tier *tier, uint32_t key,
                          const uint8_t *const data[MOE_EXPERT_PARTS]);

/* Pins a slot for an expert that is about to leave the device, and says in `buffers` where to save
 * its bytes. False when the expert is in host memory already, or no slot is free. End it by
 * settle_saved(); complete: the bytes have arrived. */
bool moe_host_tier_take_saved(moe_host_tier *tier, uint32_t key, const moe_policy_access *access,
                              uint8_t *buffers[MOE_EXPERT_PARTS]);
/* Whether saves are worth the time of their copies over the link. */
bool moe_host_tier_save_pays(moe_host_tier *tier);
void moe_host_tier_settle_saved(moe_host_tier *tier, uint32_t key, bool complete);

/* True when the expert is complete in host memory. */
bool moe_host_tier_has(const moe_host_tier *tier, uint32_t key);
/* Pins an expert for which has() is true, until release(). */
void moe_host_tier_hold(moe_host_tier *tier, uint32_t key, const moe_policy_access *access);
/* Where the parts of a held expert are. */
const uint8_t *const *moe_host_tier_data(const moe_host_tier *tier, uint32_t key);
void moe_host_tier_release(moe_host_tier *tier, uint32_t key);
/* The slots' memory. */
const moe_slot_arena *moe_host_tier_arena(const moe_host_tier *tier);
/* Which experts the slots hold. */
moe_expert_cache *moe_host_tier_cache(const moe_host_tier *tier);
/* How many slots the experts of a layer can use. */
uint32_t moe_host_tier_slots_of(const moe_host_tier *tier, uint32_t layer);

/* Notes that the tier's cache has closed a slot, because its memory serves another use, or has
 * opened it again. */
void moe_host_tier_note_closed(moe_host_tier *tier, uint32_t slot, bool closed);
bool moe_host_tier_is_closed(const moe_host_tier *tier, uint32_t slot);
/* True once after a slot has made a change that is not allowed. That is a fault of this library;
 * the slot is out of use from then on. */
bool moe_host_tier_take_fault(moe_host_tier *tier);

void moe_host_tier_end_pass(moe_host_tier *tier, uint64_t pass);
void moe_host_tier_get_stats(const moe_host_tier *tier, moe_host_tier_stats *stats);
/* Whether the slots' memory and their cache are sane, and only slots with an expert are complete.
 */
bool moe_host_tier_is_sane(const moe_host_tier *tier);

#endif
