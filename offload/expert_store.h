/* SPDX-License-Identifier: MIT */
/* Where experts are, and how a layer gets those it needs. The store joins the cache (which expert
 * is in which slot), the slots' memory and the mover (which brings bytes into slots).
 *
 * On a device with a link there are two tiers above the files: slots on the device, and the host
 * tier (host_tier.h), through which every expert passes. An expert that is in the host tier only
 * needs the link, or is computed where it is (host_split.h says which).
 *
 * A layer's request is worked off in batches: next() hands over experts whose bytes are there,
 * first the resident ones, then missing ones as they arrive, so that the caller computes while the
 * disk reads and the link copies. What has been handed over stays valid until the call after; when
 * a layer needs more experts than there are slots, that happens in waves, with the same result. Not
 * thread-safe: one pass at a time. */
#ifndef MOE_OFFLOAD_EXPERT_STORE_H
#define MOE_OFFLOAD_EXPERT_STORE_H

#include <moe/policy.h>

#include "offload/io/range_reader.h"
#include "offload/mover.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_expert_store moe_expert_store;

typedef struct moe_expert_view {
    moe_weight parts[MOE_EXPERT_PARTS]; /* in the device's memory */
} moe_expert_view;

typedef struct moe_expert_store_options {
    moe_device *device; /* device, gguf, map, policy must outlive the store */
    const moe_gguf *gguf;
    const moe_tensor_map *map;
    uint32_t n_expert_used;
    uint64_t budget_bytes;      /* of the device's slots */
    uint64_t host_budget_bytes; /* of the host tier's, on a device with a link */
    moe_switch host_compute;    /* AUTO: as many as pays; ON: all that are in host memory */
    const moe_policy *policy;
    bool per_layer;       /* a share of the slots for every layer, else one pool */
    bool keep_nothing;    /* drop every expert when its layer is done: the on-demand baseline */
    const uint32_t *kept; /* [n_kept] keys that are read when opening and never dropped */
    uint32_t n_kept;
    const float *hotness;      /* [n_layer * n_expert] or NULL */
    const uint64_t *checksums; /* [n_layer * n_expert][MOE_EXPERT_PARTS] or NULL */
    moe_io_kind io;
    bool buffered_io;
    uint32_t io_block_bytes; /* 0: the reader's default */
    uint32_t io_depth;       /* 0: likewise */
    uint64_t io_timeout_ns;  /* how long disk or link may give no sign of life; 0: 30 s */
    const moe_io_ops
        *io_engine; /* tests: instead of `io`, with its context (io_fault.h); or NULL */
    void *io_context;
    uint64_t seed;
    moe_log_fn log;
    void *user;
} moe_expert_store_options;

/* Of an expert that a verification asks for, and that was not resident when the draft began. */
typedef enum moe_verify_state {
    MOE_VERIFY_READY,     /* foreseen by the draft, and there */
    MOE_VERIFY_LOADING,   /* ... being read or copied */
    MOE_VERIFY_QUEUED,    /* ... asked for, and not begun */
    MOE_VERIFY_PREDICTED, /* brought by a prediction of the layer before, however far */
    MOE_VERIFY_MISSED,    /* nobody had asked for it */
    MOE_VERIFY_STATES
} moe_verify_state;

typedef struct moe_expert_store_stats {
    uint64_t hits, misses, evictions; /* of the device's slots */
    uint64_t host_hits, host_misses;  /* of the misses: found in host memory, read from disk */
    uint64_t host_computed;           /* of the host hits: computed there, not moved */
    uint64_t prefetches, prefetches_used, prefetches_wasted, prefetches_cancelled;
    uint64_t bytes_demand;    /* expert bytes moved to the device because they were needed */
    uint64_t bytes_prefetch;  /* ... ahead of need */
    uint64_t bytes_foresight; /* ... because a draft foresaw the need */
    uint64_t bytes_link;      /* the sum of these, if the device has a link */
    uint64_t bytes_disk_demand, bytes_disk_prefetch; /* expert bytes read, by cause; */
    uint64_t bytes_disk_foresight;
    /* Needed by verifications (request.verifies) and not resident when their draft began: by how
     * far they were when verification asked. */
    uint64_t bytes_verify[MOE_VERIFY_STATES];
    uint64_t bytes_read;               /* from the disk: aligned supersets */
    uint64_t wait_ns;                  /* passes spent waiting for experts */
    uint64_t n_retries;                /* reads made again: whole, for the rest, for a checksum */
    uint64_t n_failed;                 /* experts that could not be read or moved */
    uint64_t n_timeouts;               /* waits that ended at the io timeout */
    uint64_t policy_faults;            /* of the device's cache and of the host's */
    uint64_t n_asked[MOE_CAUSE_COUNT]; /* moves asked for, by cause */
    uint64_t n_slots, slot_bytes_total, n_resident;
    uint64_t n_host_slots, host_slot_bytes_total, n_host_resident;
    uint64_t n_closed, n_host_closed; /* of the slots: their memory is used for something else */
} moe_expert_store_stats;

int moe_expert_store_open(moe_expert_store **out, const moe_expert_store_options *options,
                          moe_error *err);
/* Returns within some three io time-outs, or half of one after a wait that was given up or
 * cancelled. Memory that a hanging disk or link may still write to stays allocated for ever, and
 * the log says so. */
void moe_expert_store_close(moe_expert_store **store);

/* Bytes of slots that would hold every expert, and of the largest slot. */
typedef struct moe_expert_slot_sizes {
    uint64_t full_bytes, slot_bytes;           /* on the device */
    uint64_t host_full_bytes, host_slot_bytes; /* of the host tier; 0 without a link */
    uint32_t n_classes;                        /* of sizes */
} moe_expert_slot_sizes;

/* Before opening. */
int moe_expert_store_sizes(const moe_tensor_map *map, bool has_link, moe_expert_slot_sizes *sizes,
                           moe_error *err);

/* What a layer of a pass needs. The arrays must live until next() has handed over all. */
typedef struct moe_layer_request {
    uint32_t layer;
    uint64_t pass;
    const uint32_t *experts; /* [n] distinct, ascending */
    const uint32_t *n_rows;  /* [n] rows that chose each */
    const float *gates;      /* [n] the weights that those rows mix it with, summed; or NULL */
    uint32_t n;
    bool verifies; /* what a draft that foresees has drafted; for the statistics */
    /* [n_keep] experts of this layer that stay from the layer's end on, instead of those named
     * before, until they are named no more; NULL: no change. A draft's. */
    const uint32_t *keep;
    uint32_t n_keep;
    /* Ends waits of begin() and next(), which then return MOE_ERR_CANCELLED. */
    moe_wait_cancel cancel;
} moe_layer_request;

/* Asks for the first wave at once. */
int moe_expert_store_begin(moe_expert_store *store, const moe_layer_request *request,
                           moe_error *err);
/* Up to request->n experts that are ready: their positions in request->experts and their views.
 * *n = 0: the layer is done. After an error the layer is over and nothing is pinned. */
int moe_expert_store_next(moe_expert_store *store, uint32_t *positions, moe_expert_view *views,
                          uint32_t *n, moe_error *err);
/* Experts of the layer that the host is to compute, as for next(), with views of host memory; they
 * are not handed over by next(). Asked once, after begin(). Until host_done(), which must come
 * before the next layer begins, their memory stays as it is. */
void moe_expert_store_take_host(moe_expert_store *store, uint32_t *positions,
                                moe_expert_view *views, uint32_t *n);
/* They have been computed (or given up): they are let go, and where the device has empty slots
 * they are brought there for the next time. */
void moe_expert_store_host_done(moe_expert_store *store, uint64_t pass);
/* Measured times, for the split: n experts that had so many rows between them. */
void moe_expert_store_note_host(moe_expert_store *store, uint32_t n, uint32_t n_rows, uint64_t ns);
void moe_expert_store_note_device(moe_expert_store *store, uint32_t n, uint32_t n_rows,
                                  uint64_t ns);
/* Ends a layer early (the pass failed), without waiting: what is under way settles later, as
 * prefetches do. */
void moe_expert_store_abandon(moe_expert_store *store);
/* The step was cancelled, maybe while nothing was waited for: closing shall not wait long for reads
 * ahead either. */
void moe_expert_store_note_cancel(moe_expert_store *store);

/* Asks for experts of a coming layer ahead of demand, best first. What is resident or on its way is
 * skipped; at most max_moves are under way at once, and none is started that would need a slot
 * which the layer at work holds. */
void moe_expert_store_prefetch(moe_expert_store *store, uint32_t layer, uint64_t pass,
                               const uint32_t *experts, uint32_t n, uint32_t max_moves);
/* Begins to fill empty slots of the device, in the background, with experts in this order; keys:
 * [n] layer * n_expert + expert. Nothing is evicted for them, what is resident is skipped, and the
 * next begin() takes back those that the disk has not been asked for. Returns how many were asked
 * for. */
uint32_t moe_expert_store_warm(moe_expert_store *store, const uint32_t *keys, uint32_t n);
/* Fills empty slots likewise, and returns when that is done: MOE_ERR_CANCELLED when report() says
 * false, else an error only for a disk or a link that hangs. An expert that cannot be read stays
 * away, and whoever needs it is told. report: called with the share of the keys that are there or
 * have failed; may be NULL. */
typedef bool (*moe_store_progress_fn)(double share, void *user);
int moe_expert_store_fill(moe_expert_store *store, const uint32_t *keys, uint32_t n,
                          moe_store_progress_fn report, void *user, moe_error *err);

/* ---- For drafts (expert_store_draft.c) ---- */

/* Which experts of a layer are in the device's memory, ready for use. resident: [n_expert]. */
void moe_expert_store_residents(moe_expert_store *store, uint32_t layer, bool *resident);
/* Another number when what is resident may have changed since it was asked for. */
uint64_t moe_expert_store_version(const moe_expert_store *store);
/* Resident experts of a layer, for use outside of a request: nothing is counted, no policy is told.
 * The views hold until the next call that may move anything. */
void moe_expert_store_peek(const moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                           uint32_t n, moe_expert_view *views);
/* Experts of a layer that the coming verification is expected to ask for: what is resident is
 * protected from eviction until that layer's turn (or the end of the pass), what is missing is
 * asked for, behind demands and before prefetches, as long as slots can be had. At most half the
 * slots are held for this. */
void moe_expert_store_foresee(moe_expert_store *store, uint32_t layer, uint64_t pass,
                              const uint32_t *experts, uint32_t n);
/* Takes back what was foreseen and is wanted no more: protection, and reads not begun. */
typedef bool (*moe_still_foreseen_fn)(uint32_t layer, uint32_t expert, void *user);
void moe_expert_store_forget(moe_expert_store *store, moe_still_foreseen_fn still, void *user);

/* ---- The border between slots and other uses of memory (expert_store_border.c) ---- */

/* No layer is at work. The coldest slots in RAM (the device's where it has no link, else the host
 * tier's) are closed and their pages go back to the system, until *freed is at least `bytes`. As
 * many slots of each size stay as experts that a token uses in a layer. MOE_ERR_BUDGET when that
 * cannot be: nothing has changed. Another error: a disk or a link hangs. */
int moe_expert_store_give_up(moe_expert_store *store, uint64_t bytes, uint64_t *freed,
                             moe_error *err);
/* What give_up() could free. 0: the memory is page-locked, and is given back as a whole. */
uint64_t moe_expert_store_spare(const moe_expert_store *store);
/* Opens slots again as long as their pages are no more than `bytes` in all; returns how many
 * they are. */
uint64_t moe_expert_store_take_back(moe_expert_store *store, uint64_t bytes);
/* Slots of a device with a link lend their memory: so many bytes of it, 64-aligned. All loans are
 * of one size. The coldest slots are closed for it, down to the same floor: MOE_ERR_BUDGET. */
int moe_expert_store_lend(moe_expert_store *store, size_t bytes, void **memory, moe_error *err);
/* Loans of so many bytes that could be had. */
uint64_t moe_expert_store_n_lendable(const moe_expert_store *store, size_t bytes);
/* A loan comes back; the device is done with it. */
void moe_expert_store_end_loan(moe_expert_store *store, void *memory);
/* Pages of RAM slots that have been given up. */
uint64_t moe_expert_store_closed_bytes(const moe_expert_store *store);
/* Asserts of tests: caches and loans agree. */
bool moe_expert_store_check(const moe_expert_store *store);

/* True when the disk has nothing urgent to do. */
bool moe_expert_store_is_idle(const moe_expert_store *store);

void moe_expert_store_end_pass(moe_expert_store *store, uint64_t pass);
void moe_expert_store_get_stats(moe_expert_store *store, moe_expert_store_stats *stats);
/* Of the statistics: the time that passes have spent waiting for experts. */
uint64_t moe_expert_store_wait_ns(moe_expert_store *store);
/* "io_uring, O_DIRECT, ..." */
void moe_expert_store_describe(const moe_expert_store *store, char *out, size_t size);

#endif
