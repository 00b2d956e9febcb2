/* SPDX-License-Identifier: MIT */
/* Knows where experts are, and gives a layer the experts that it needs. The store joins the cache
 * (which expert is in which slot), the slots' memory and the mover (which brings bytes into slots).
 *
 * On a device with a link there are two tiers above the files: slots on the device, and the host
 * tier (host_tier.h), through which every expert passes. An expert in the host tier only needs the
 * link, or is computed where it is. Each expert is kept in one tier only, as far as possible: a
 * host slot is given up first if the device holds its expert, and an expert that leaves the device
 * is copied back to a host slot (demoted) unless the host has it. So memory holds as many distinct
 * experts as both tiers have slots.
 *
 * A layer's request is handled in batches. next() hands over experts whose bytes are there: first
 * the resident ones, then missing ones as they arrive. So the caller computes while the disk reads
 * and the link copies. A batch stays valid until the following call. If a layer needs more experts
 * than there are slots, next() works in waves, with the same result. Not thread-safe: one pass at a
 * time. */
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
    moe_device *device; /* device, gguf, copies, map and policy must outlive the store */
    const moe_gguf *gguf;
    const moe_gguf *const *copies; /* [n_copies] the same model on other drives */
    uint32_t n_copies;
    const moe_tensor_map *map;
    uint32_t n_expert_used;
    uint64_t budget_bytes; /* of the device's slots */
    /* [cards] how much of budget_bytes each card has; read only for several cards */
    const uint64_t *card_bytes;
    uint64_t host_budget_bytes; /* of the host tier's slots, on a device with a link */
    const moe_policy *policy;
    bool per_layer;       /* give every layer its share of the slots; else one pool */
    bool keep_nothing;    /* drop every expert when its layer is done: the on-demand baseline */
    const uint32_t *kept; /* [n_kept] keys that are read when opening and never evicted */
    uint32_t n_kept;
    const float *hotness;  /* [n_layer * n_expert] or NULL */
    moe_weight_sums *sums; /* checksums that are known, and room for others; or NULL */
    moe_io_kind io;
    bool buffered_io;
    uint32_t io_block_bytes; /* 0: the reader's default */
    uint32_t io_depth;       /* 0: the reader's default */
    uint64_t io_timeout_ns;  /* how long disk and link may move no byte; 0: 30 s */
    /* Threads that bring pages of slots in ahead of reads (slot_pages.h). */
    uint32_t n_page_threads;
    const moe_io_ops
        *io_engine; /* tests: used in place of `io`, with its context (io_fault.h); or NULL */
    void *io_context;
    uint64_t seed;
    moe_log_fn log;
    void *user;
} moe_expert_store_options;

/* How far an expert had come when a verification asked for it. Counts only experts that were not
 * resident when the draft began. */
typedef enum moe_verify_state {
    MOE_VERIFY_READY,     /* foreseen by the draft, and loaded by now */
    MOE_VERIFY_LOADING,   /* foreseen by the draft, and being read or copied */
    MOE_VERIFY_QUEUED,    /* foreseen by the draft and requested, but not begun */
    MOE_VERIFY_PREDICTED, /* prefetched by the layer before, at any stage */
    MOE_VERIFY_MISSED,    /* not requested */
    MOE_VERIFY_STATES
} moe_verify_state;

typedef struct moe_expert_store_stats {
    uint64_t hits, misses, evictions; /* of the device's slots */
    uint64_t host_hits, host_misses;  /* misses found in host memory; misses found on the disk */
    uint64_t host_computed;           /* host hits that were computed on the host, not moved */
    /* Host hits that kernels read there and that were not moved. */
    uint64_t read_in_place;
    uint64_t bytes_in_place; /* expert bytes of these */
    uint64_t kept;           /* experts read in place that the pass kept on the device */
    /* Copies of experts that left the device's slots to host slots: begun; lost; and host hits on
     * such copies. */
    uint64_t demoted, demotions_lost, demoted_hits;
    uint64_t bytes_demoted;
    uint64_t prefetches, prefetches_used, prefetches_wasted, prefetches_cancelled;
    uint64_t bytes_demand;    /* expert bytes moved to the device on demand */
    uint64_t bytes_prefetch;  /* ... ahead of need */
    uint64_t bytes_foresight; /* ... because a draft foresaw the need */
    uint64_t bytes_link;      /* the sum of these three, if the device has a link: host to device */
    uint64_t bytes_disk_demand, bytes_disk_prefetch; /* expert bytes read, by cause; */
    uint64_t bytes_disk_foresight;
    /* Bytes that verifications (request.verifies) needed and that were not resident when their
     * draft began, by how far they had come when the verification asked. */
    uint64_t bytes_verify[MOE_VERIFY_STATES];
    uint64_t bytes_read; /* from the disk, as aligned supersets */
    uint64_t wait_ns;    /* time that passes spent waiting for experts */
    /* Repeated reads: whole, for the rest, or after a wrong checksum. */
    uint64_t n_retries;
    uint64_t n_failed;                 /* experts that could not be read or moved */
    uint64_t n_timeouts;               /* waits that ended at the io timeout */
    uint64_t policy_faults;            /* of the device's cache and of the host tier's */
    uint64_t n_asked[MOE_CAUSE_COUNT]; /* moves requested, by cause */
    uint64_t n_slots, slot_bytes_total, n_resident;
    uint64_t n_host_slots, host_slot_bytes_total, n_host_resident;
    uint64_t n_closed, n_host_closed; /* slots whose memory is used for something else */
} moe_expert_store_stats;

int moe_expert_store_open(moe_expert_store **out, const moe_expert_store_options *options,
                          moe_error *err);
/* Returns within about three I/O time-outs, or within half of one if a wait has timed out or was
 * cancelled. Memory that a hanging disk or link may still write to is never freed, and the log says
 * so. */
void moe_expert_store_close(moe_expert_store **store);

/* Bytes of slots that would hold every expert, and of the largest slot. */
typedef struct moe_expert_slot_sizes {
    uint64_t full_bytes, slot_bytes;           /* on the device */
    uint64_t host_full_bytes, host_slot_bytes; /* of the host tier; 0 without a link */
    uint32_t n_classes;                        /* of sizes */
} moe_expert_slot_sizes;

/* May be called before the store is opened. */
int moe_expert_store_sizes(const moe_tensor_map *map, bool has_link, moe_expert_slot_sizes *sizes,
                           moe_error *err);

#define MOE_MOST_OFFERS MOE_MAX_SPARES /* slots that are offered to a pass at once */

/* A device slot that a pass may fill by itself, and the expert that is in it. */
typedef struct moe_slot_offer {
    uint32_t slot;
    uint32_t key;             /* MOE_KEY_NONE: the slot is empty */
    moe_expert_address place; /* of the slot */
    moe_expert_address home;  /* of the expert, in host memory that the device reads */
} moe_slot_offer;

/* An expert that a pass has read over the link and kept in an offered slot. */
typedef struct moe_kept_expert {
    uint32_t expert;
    const moe_slot_offer *offer;
} moe_kept_expert;

/* For a layer that the device has carried out alone: where the device has read its experts. */
typedef struct moe_played_layer {
    /* [n_expert]: what moe_expert_store_reach() gave before the pass */
    const uint8_t *reach;
    const moe_kept_expert *kept; /* [n_kept]: experts that were reached in host memory and kept */
    uint32_t n_kept;
    bool offered; /* there were enough offers to keep them, so the others are not moved either */
} moe_played_layer;

/* What a layer of a pass needs. The arrays must live until next() has handed over all experts. */
typedef struct moe_layer_request {
    uint32_t layer;
    uint64_t pass;
    const uint32_t *experts; /* [n] distinct, ascending */
    const uint32_t *n_rows;  /* [n]: how many rows chose each expert */
    /* [n]: the sum of the weights with which those rows mix the expert; or NULL */
    const float *gates;
    uint32_t n;
    /* [n], in and out: which experts are to be computed in host memory. They are not moved, and
     * next() hands them over first, with views of host memory. begin() clears the flags of experts
     * that it cannot hold there. NULL: none. */
    bool *on_host;
    /* Not NULL: the device has computed the layer by itself. Experts that it read in host memory
     * are neither moved nor handed over. */
    const moe_played_layer *played;
    /* All experts that are not computed on the host must get slots together, in a single wave. */
    bool at_once;
    bool verifies; /* the pass verifies a draft that foresees experts; for the statistics */
    /* For drafts: [n_keep] experts of this layer that stay from the layer's end on. They replace
     * the experts that an earlier draft kept. NULL: no change. */
    const uint32_t *keep;
    uint32_t n_keep;
    /* Ends waits of begin() and next() early; these then return MOE_ERR_CANCELLED. */
    moe_wait_cancel cancel;
} moe_layer_request;

/* What using a layer's experts costs, and its limits. */
typedef struct moe_expert_sites {
    uint64_t expert_bytes;
    double link_ns_per_byte; /* measured; 0: not yet */
    uint32_t most_on_host;   /* how many may be computed in host memory in one layer */
} moe_expert_sites;

/* Sets tiers [n] to the moe_tier values of some experts of a layer, which are about to be
 * requested. */
void moe_expert_store_locate(moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                             uint32_t n, uint8_t *tiers, moe_expert_sites *sites);
/* Begins a layer; requests its first wave at once. */
int moe_expert_store_begin(moe_expert_store *store, const moe_layer_request *request,
                           moe_error *err);
/* Hands over up to request->n experts that are ready: their positions in request->experts, and
 * their views. Experts to be computed on the host come first, all together; their memory stays
 * valid until end_layer(). *n = 0: nothing more comes. After an error none of the device's slots is
 * pinned. */
int moe_expert_store_next(moe_expert_store *store, uint32_t *positions, moe_expert_view *views,
                          uint32_t *n, moe_error *err);
/* How long next() would probably wait now; 0: it would not wait, or this is not known. */
uint64_t moe_expert_store_expected_wait_ns(const moe_expert_store *store);
/* How long one expert takes to arrive while the disk is busy, an average; 0: not known. */
uint64_t moe_expert_store_read_ns(const moe_expert_store *store);
/* Counts time as waiting although the caller used it for something else: next() would have
 * waited. */
void moe_expert_store_note_wait(moe_expert_store *store, uint64_t ns);
/* Call at the end of a layer if experts of it were computed on the host, or if the pass gives the
 * layer up. Unpins the host's experts, and copies them to the device for their next use where it
 * has empty slots. Moves under way settle later, like prefetches. */
void moe_expert_store_end_layer(moe_expert_store *store);
/* Notes that the step was cancelled, perhaps while nothing waited. Closing then does not wait long
 * for prefetches. */
void moe_expert_store_note_cancel(moe_expert_store *store);

/* Prefetches experts of a coming layer, best first. Skips experts that are resident or on their
 * way. At most max_moves are under way at once. No prefetch takes a slot that the current layer
 * holds. */
void moe_expert_store_prefetch(moe_expert_store *store, uint32_t layer, uint64_t pass,
                               const uint32_t *experts, uint32_t n, uint32_t max_moves);
/* Whether an expert will be computed elsewhere, so that reading it ahead would be of no use. */
typedef bool (*moe_elsewhere_fn)(void *user, uint32_t layer, uint32_t expert);
/* From now on prefetches and foresight skip missing experts that will be computed elsewhere. NULL:
 * none. */
void moe_expert_store_skip(moe_expert_store *store, moe_elsewhere_fn elsewhere, void *user);
/* Begins to fill empty device slots in the background, with experts in this order. keys: [n], each
 * is layer * n_expert + expert. Evicts nothing and skips resident experts. The next begin() cancels
 * the reads that the disk has not got yet. But if there is no link and a slot for every expert, it
 * cancels none: demands overtake these reads. Returns how many experts were requested. */
uint32_t moe_expert_store_warm(moe_expert_store *store, const uint32_t *keys, uint32_t n);
/* Fills empty slots in the same way, and returns when this is done. MOE_ERR_CANCELLED: report() has
 * returned false. Another error: the disk or link hangs. An expert that cannot be read stays
 * absent; a demand for it will get the error. report() gets the share of the keys that are loaded
 * or have failed; it may be NULL. */
typedef bool (*moe_store_progress_fn)(double share, void *user);
int moe_expert_store_fill(moe_expert_store *store, const uint32_t *keys, uint32_t n,
                          moe_store_progress_fn report, void *user, moe_error *err);

/* ---- For drafts (expert_store_draft.c) ---- */

/* Sets resident [n_expert]: which experts of a layer are in the device's memory, ready for use. */
void moe_expert_store_residents(moe_expert_store *store, uint32_t layer, bool *resident);
/* Sets hops [n_expert] of a layer: 0 for an expert that is resident, 1 for one in the host tier, 2
 * for others. */
void moe_expert_store_hops(const moe_expert_store *store, uint32_t layer, uint8_t *hops);
/* How many experts of a layer neither have a device slot nor are on their way to one. */
uint32_t moe_expert_store_n_without_slot(const moe_expert_store *store, uint32_t layer);
/* Sets tiers [n_layer * n_expert] to moe_tier values (expert_store_tiers.c). */
void moe_expert_store_tiers(const moe_expert_store *store, uint8_t *tiers);
/* A number that changes whenever the resident set may have changed. */
uint64_t moe_expert_store_version(const moe_expert_store *store);
/* Gives views of a layer's resident experts without a request: counts nothing and tells no policy.
 * The views are valid until the next call that may move anything. */
void moe_expert_store_peek(const moe_expert_store *store, uint32_t layer, const uint32_t *experts,
                           uint32_t n, moe_expert_view *views);
/* ---- For passes that the device carries out alone (expert_store_place.c) ---- */

/* Where the device can read an expert now. */
typedef enum moe_expert_reach {
    MOE_REACH_NONE,
    MOE_REACH_DEVICE, /* in its slot */
    MOE_REACH_HOST    /* in its host slot, over the link */
} moe_expert_reach;

/* Takes note of moves that have ended. Returns a number that changes whenever the results of
 * reach() may have changed. */
uint64_t moe_expert_store_settle(moe_expert_store *store);
/* Sets reach [n_expert] to moe_expert_reach values, and addresses [n_expert] to where the experts
 * are (zero for MOE_REACH_NONE). in_place: experts in host slots count, too (MOE_REACH_HOST). The
 * results hold until the next call that may move anything: only this thread requests moves, and a
 * move under way writes only to slots of experts with MOE_REACH_NONE. */
void moe_expert_store_reach(moe_expert_store *store, uint32_t layer, bool in_place, uint8_t *reach,
                            moe_expert_address *addresses);
/* Offers up to n slots of the layer's domain for experts that a pass reads over the link: first
 * empty slots, then slots whose experts the policy would evict. Returns the number of offers. A
 * slot whose expert has no copy in host memory that the device can read is not offered, because
 * that expert would be lost; it still counts towards n. Offers hold as long as the results of
 * reach(). An offer that the pass does not use costs nothing. */
uint32_t moe_expert_store_offer(moe_expert_store *store, uint32_t layer, uint32_t n,
                                moe_slot_offer *offers);
/* Whether an offer still holds, in a later pass. */
bool moe_expert_store_offer_holds(const moe_expert_store *store, const moe_slot_offer *offer);
/* Gives up the slot of an offer after a failed pass, which may have overwritten it. */
void moe_expert_store_lose_offer(moe_expert_store *store, const moe_slot_offer *offer);
/* The number of a layer's domain, below n_layer. Layers with the same number share slots. */
uint32_t moe_expert_store_domain_of(const moe_expert_store *store, uint32_t layer);
/* Begins to move experts to the device that passes read in place and did not keep, so that later
 * passes find them there: all that find an empty slot, and, for every four readings, one that was
 * read twice within a few passes. Call between two layers. */
void moe_expert_store_promote(moe_expert_store *store, uint64_t pass);
/* The statistics' host_hits. */
uint64_t moe_expert_store_host_hits(const moe_expert_store *store);

/* Announces experts that the coming verification will probably need. Resident ones are protected
 * from eviction until their layer's turn, or until the end of the pass. Missing ones are requested,
 * after demands and before prefetches, while slots are available. At most half of the slots are
 * held for this. */
void moe_expert_store_foresee(moe_expert_store *store, uint32_t layer, uint64_t pass,
                              const uint32_t *experts, uint32_t n);
/* Gives the caches of both tiers a forecast of the experts that passes from first_pass on will use.
 * It replaces earlier forecasts. Moves nothing. */
void moe_expert_store_lookahead(moe_expert_store *store, uint64_t first_pass,
                                const moe_policy_forecast *uses, size_t n);
/* Withdraws experts that were foreseen and for which still() now returns false: ends their
 * protection, and cancels reads that have not begun. */
typedef bool (*moe_still_foreseen_fn)(uint32_t layer, uint32_t expert, void *user);
void moe_expert_store_forget(moe_expert_store *store, moe_still_foreseen_fn still, void *user);

/* Checks what must hold between two calls: tiers are sane, every pin has an owner, and moves under
 * way are pinned. O(slots + keys). */
bool moe_expert_store_is_sane(const moe_expert_store *store);

/* True when the disk has neither a demand nor a verification to serve. */
bool moe_expert_store_is_idle(const moe_expert_store *store);

void moe_expert_store_end_pass(moe_expert_store *store, uint64_t pass);
/* Says that from this expert of the layer on each expert is used once, in ascending order (a scan).
 * Calls moe_expert_cache_scan() for both tiers. layer MOE_NO_SCAN: the scan is over. */
void moe_expert_store_scan(moe_expert_store *store, uint32_t layer, uint32_t expert);
/* moe_expert_cache_scan_room() for the device's slots. */
uint32_t moe_expert_store_scan_room(const moe_expert_store *store, uint32_t layer);
/* The same for the slots that files are read into: the device's or, with a link, the host
 * tier's. */
uint32_t moe_expert_store_scan_spare(const moe_expert_store *store, uint32_t layer);
void moe_expert_store_get_stats(moe_expert_store *store, moe_expert_store_stats *stats);
/* Expert bytes that were moved to the device's slots, for any cause. */
uint64_t moe_expert_store_bytes_moved(const moe_expert_store *store);
/* The statistics' wait_ns. */
uint64_t moe_expert_store_wait_ns(const moe_expert_store *store);
/* Writes how files are read: "io_uring, O_DIRECT, ..." */
void moe_expert_store_describe(const moe_expert_store *store, char *out, size_t size);

#endif
