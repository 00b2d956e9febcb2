/* SPDX-License-Identifier: MIT */
/* Shared by the files of the expert store: expert_store_layer.c (layers), expert_store_host.c
 * (experts computed in host memory), the other expert_store_*.c, and memory_border.c. No other file
 * includes it. */
#ifndef MOE_OFFLOAD_EXPERT_STORE_STATE_H
#define MOE_OFFLOAD_EXPERT_STORE_STATE_H

#include "cache/key_list.h"
#include "cache/layer_access.h"
#include "offload/expert_store.h"
#include "offload/host_tier.h"
#include "offload/slot_arena.h"
#include "offload/slot_pages.h"
#include "offload/slot_record.h"
#include "runtime/base/moe_assert.h"

#define MOE_MOST_LOAN_PARTS 64u
#define MOE_MOST_PROMOTED   16u /* experts moved for each pass that has read in place */

/* A loan: neighbouring device slots that are closed. Their memory is cut into parts of one size,
 * which serve other uses. */
typedef struct moe_slot_loan {
    uint32_t first, n_run;
    uint8_t *memory; /* device */
    size_t part_bytes;
    uint32_t n_parts; /* at most MOE_MOST_LOAN_PARTS */
    uint64_t used;    /* a bit for each part */
} moe_slot_loan;

/* The memory of a tier's slots, and the cache that says which expert is in which slot. */
typedef struct moe_slot_tier {
    const moe_slot_arena *arena;
    moe_expert_cache *cache;
} moe_slot_tier;

struct moe_expert_store {
    /* Set at open, never changed. */
    moe_expert_store_options options;
    moe_slot_arena arena; /* of the device's slots */
    moe_host_tier *host;  /* NULL: the device has no link, and the disk reads into its slots */
    moe_expert_cache *cache;
    moe_slot_tier ram; /* the slots that files are read into: the device's, or the host tier's */
    /* For the device's slots if it has no link; NULL: no thread brings pages in (any more). */
    moe_slot_pages *pages;
    moe_mover *mover;

    uint64_t n_asked[MOE_CAUSE_COUNT];
    moe_elsewhere_fn elsewhere; /* NULL: no expert is computed elsewhere */
    void *elsewhere_user;
    uint64_t n_refused; /* prefetches for which no host slot was free */

    /* The current layer. */
    moe_layer_request request;
    uint32_t *keys;              /* [n_expert]: the keys of the request's experts */
    moe_policy_access *accesses; /* [n_expert] */
    bool *handled;               /* [n_expert]: in this wave or an earlier one */
    moe_layer_access *wave;      /* [n_expert] */
    bool *delivered;             /* [n_expert]: of the wave, whether handed over */
    uint32_t *waiting;           /* [n_expert or n_slots]: slots to wait for */
    uint32_t n_wave;
    uint32_t n_delivered;
    uint64_t wave_ns; /* when the wave was requested */

    /* The slots. Only expert_store_slots.c writes the following fields. */
    moe_slot_record *slots; /* [n_slots] */
    moe_key_list ahead;     /* one list: slots that are held AHEAD, the oldest last */
    moe_key_list foreseen;  /* likewise: slots that are held FORESEEN */
    uint32_t n_ahead, n_foreseen;
    uint32_t n_saving;  /* slots whose request saves an expert */
    uint32_t n_retired; /* RETIRED slots */
    uint64_t n_changes; /* how often the set of RESIDENT slots has changed */
    /* Why the last slot was retired, until a layer has failed with it; else "". */
    moe_error fault;

    /* Experts of the layer that the host computes. */
    /* [n_expert]: positions in the request; these experts are held in the host tier */
    uint32_t *host_positions;
    uint32_t n_host;
    bool host_is_given; /* next() has handed them over */
    uint64_t n_host_computed;

    uint64_t bytes_verify[MOE_VERIFY_STATES];

    /* Experts that the device has read in host memory. */
    uint64_t n_in_place, bytes_in_place;
    uint64_t n_kept;
    /* [n_layer * n_expert]: 1 + the last pass that read the expert in place; 0: none */
    uint64_t *place_pass;
    uint32_t *promoted; /* [MOE_MOST_PROMOTED] keys to move to the device when the pass ends */
    uint32_t n_promoted;
    uint32_t n_unmoved;     /* readings in place that have not yet been counted for a move */
    uint8_t *host_readable; /* [host slots] 1: the device can read the slot; 2: it cannot; 0: not
                             * known yet */
    /* A number that rises when requests settle and release host slots, or keeping fails. */
    uint64_t n_settled;

    /* Runs of the device's slots whose memory is lent (memory_border.c). */
    moe_slot_loan *loans;
    uint32_t n_loans;
    uint32_t loan_capacity;

    /* Of waits for slots, including waits during which the caller did something else. */
    uint64_t wait_ns;
    bool fits_all; /* set at open: there is a slot for each expert, and no link */
    /* Some prefetches belong to a warm start, and no layer has begun since; or
     * moe_store_reads_all() holds. */
    bool warming;
};

static inline uint32_t moe_store_key(const moe_expert_store *store, uint32_t layer, uint32_t expert)
{
    MOE_ASSERT(layer < store->options.map->n_layer && expert < store->options.map->n_expert);
    return layer * store->options.map->n_expert + expert;
}

/* Fills in the view of an expert whose parts are at `data`. */
void moe_store_fill_view(const moe_expert_store *store, uint32_t key, const uint8_t *const *data,
                         moe_expert_view *view);

/* Fills in the view of the expert in a RESIDENT slot. */
void moe_store_view(const moe_expert_store *store, uint32_t slot, moe_expert_view *view);

/* ---- Slots (slot_record.h says which changes are lawful) ---- */

static inline moe_slot_use moe_store_use(const moe_expert_store *store, uint32_t slot)
{
    MOE_ASSERT(slot < store->arena.n_slots);
    return (moe_slot_use)store->slots[slot].use;
}

static inline bool moe_store_is_held(const moe_expert_store *store, uint32_t slot,
                                     moe_slot_hold hold)
{
    MOE_ASSERT(slot < store->arena.n_slots);
    return (store->slots[slot].holds & hold) != 0;
}

/* Whether a key's bytes are on the device. *slot: out, its slot, also if the bytes are only on
 * their way; MOE_SLOT_NONE: it has no slot. */
static inline bool moe_store_is_resident(const moe_expert_store *store, uint32_t key,
                                         uint32_t *slot)
{
    *slot = moe_expert_cache_find(store->cache, key);
    return *slot != MOE_SLOT_NONE && moe_store_use(store, *slot) == MOE_USE_RESIDENT;
}

int moe_store_init_slots(moe_expert_store *store, moe_error *err);
void moe_store_free_slots(moe_expert_store *store);
/* Notes that the cache has given the slot to an expert and, for it, evicted the key `evicted`
 * (MOE_KEY_NONE: none). Returns `evicted` if its bytes are in the slot, else MOE_KEY_NONE. */
uint32_t moe_store_give(moe_expert_store *store, uint32_t slot, uint32_t evicted);
/* Asks the mover to bring the slot's expert. False, without a request, if the move needs a slot of
 * the host tier and none is free. evicted: the expert whose bytes are in the slot, or MOE_KEY_NONE;
 * it is copied to host memory first if there is a place for it. */
bool moe_store_submit(moe_expert_store *store, uint32_t slot, uint32_t evicted,
                      const moe_policy_access *access, moe_move_cause cause);
/* Notes the outcome of the slot's request if it has ended. Does nothing if there is no request. */
moe_slot_outcome moe_store_settle(moe_expert_store *store, uint32_t slot);
/* Withdraws the slot's request. False when it has begun, or ended. */
bool moe_store_cancel(moe_expert_store *store, uint32_t slot);
/* Notes that a kernel has put the slot's expert into the slot. */
void moe_store_adopt(moe_expert_store *store, uint32_t slot);
/* Takes the expert out of its slot, and ends all holds on it. The slot must not be MOVING. */
void moe_store_drop(moe_expert_store *store, uint32_t slot);
/* Notes that the cache has closed the slot, so that its pages go to the system (CLOSED) or to
 * sessions (LENT); or that the cache has opened it again. */
void moe_store_close(moe_expert_store *store, uint32_t slot, moe_slot_use use);
void moe_store_reopen(moe_expert_store *store, uint32_t slot);
/* hold() sets a hold and pins the slot; the hold must not be set before. release() undoes this. */
void moe_store_hold(moe_expert_store *store, uint32_t slot, moe_slot_hold hold);
void moe_store_release(moe_expert_store *store, uint32_t slot, moe_slot_hold hold);
/* Sets the hold WAVE without a pin: the access of the wave has pinned the slot already. */
void moe_store_join_wave(moe_expert_store *store, uint32_t slot);
/* Notes that the slot's expert is brought ahead of need, for this pass. */
void moe_store_note_brought(moe_expert_store *store, uint32_t slot, uint64_t pass,
                            moe_move_cause cause);
/* Returns MOE_ERR_INTERNAL, once, after a slot has been retired. */
int moe_store_check(moe_expert_store *store, moe_error *err);

/* ---- What several files do with slots ---- */

/* Returns when one of these slots has settled, or with an error that names an expert that hangs. */
int moe_store_wait(moe_expert_store *store, const uint32_t *slots, uint32_t n, moe_error *err);
/* Reads the experts that are kept for good, and leaves them pinned. */
int moe_store_load_kept(moe_expert_store *store, moe_error *err);
/* Whether the expert will be computed elsewhere (moe_expert_store_skip()). */
bool moe_store_is_elsewhere(const moe_expert_store *store, uint32_t key);
/* Moves a key into the device's slots ahead of need. False when no slot is available. */
bool moe_store_prefetch_key(moe_expert_store *store, uint32_t key, const moe_policy_access *access,
                            moe_move_cause cause);
/* Ends the protection of a layer's experts; MOE_ALL_LAYERS: of all layers' experts. */
#define MOE_ALL_LAYERS UINT32_MAX
void moe_store_unprotect(moe_expert_store *store, uint32_t layer);
/* Settles the slots that are held AHEAD. Those that have arrived are released; those that failed
 * are dropped, because a demand for the expert will meet the error itself. */
void moe_store_settle_ahead(moe_expert_store *store);
/* Cancels requests of slots held AHEAD that have not begun and for which wanted() is false. wanted
 * NULL: cancels all that have not begun. Cancels none if moe_store_reads_all(). */
typedef bool (*moe_store_wanted_fn)(const moe_expert_store *store, uint32_t key, void *user);
void moe_store_cancel_ahead(moe_expert_store *store, moe_store_wanted_fn wanted, void *user);
/* Returns when a slot held AHEAD has settled; there must be one. */
int moe_store_wait_ahead(moe_expert_store *store, moe_error *err);
/* Cancels requests that have not begun, and waits for the others. Afterwards no request is under
 * way. */
int moe_store_quiesce(moe_expert_store *store, moe_error *err);
/* Unpins the experts that a draft keeps, until a draft names them again. */
void moe_store_release_kept(moe_expert_store *store);
/* Whether a warm start is under way and each expert has a slot. Then no layer needs the slots that
 * wait for these reads, and demands overtake the reads; so nothing cancels them. */
static inline bool moe_store_reads_all(const moe_expert_store *store)
{
    return store->warming && store->fits_all && moe_expert_cache_n_closed(store->cache) == 0;
}
/* Cancels reads of a warm start that have not begun, because something is requested now. Cancels
 * none if moe_store_reads_all(). */
void moe_store_stop_warming(moe_expert_store *store);
/* Notes the request's experts that the device has read in host memory, and marks them handled. */
void moe_store_note_in_place(moe_expert_store *store);
/* Where the expert's parts are in host memory that the device can read, aligned as kernels need
 * them; NULL: they are not there. */
const uint8_t *const *moe_store_find_in_host(moe_expert_store *store, uint32_t key);
/* Writes where the parts of a layer's expert are. */
void moe_store_fill_address(const moe_expert_store *store, uint32_t key, const uint8_t *const *data,
                            bool over_link, moe_expert_address *address);
int moe_store_init_place(moe_expert_store *store, moe_error *err);
void moe_store_free_place(moe_expert_store *store);
/* Lends `bytes` of the device slots' memory, 64-aligned, on a device with a link. Each call lends
 * the same number of bytes. Closes the coldest slots for this. MOE_ERR_BUDGET, without a message:
 * no slots may be closed. */
int moe_store_lend(moe_expert_store *store, size_t bytes, void **memory, moe_error *err);
/* Ends a loan; the device no longer uses it. */
void moe_store_end_loan(moe_expert_store *store, void *memory);
/* The moe_tier value of a key. */
uint8_t moe_store_tier_of(const moe_expert_store *store, uint32_t key);
/* For experts that the host computes. The first function holds those of the request and marks them
 * handled; the second hands them over; the third releases them, and copies them to the device if it
 * has empty slots. */
void moe_store_hold_on_host(moe_expert_store *store);
uint32_t moe_store_give_on_host(moe_expert_store *store, uint32_t *positions,
                                moe_expert_view *views);
void moe_store_release_on_host(moe_expert_store *store);

#endif
