/* SPDX-License-Identifier: MIT */
/* The mover: one thread that brings experts from the files into slots. Other code sends requests
 * and sees the state of each slot:
 *
 *            submit           mover takes it         all parts read
 *   ABSENT ----------> QUEUED ---------------> LOADING --------------> READY
 *    ^ |  ^              | cancel                 | | read error         ^ |
 *    | |  |<-------------+                        | +------> FAILED      | |
 *    | |  |                         with a device v            ^         | |
 *    | |  |<------------------ cancel -------- STAGED          | fails   | |
 *    | +-- submit of what is in memory ---------->|            |         | |
 *    |                         mover takes it     +------> COPYING ------+ |
 *    +<------------------------- reset of READY or FAILED -----------------+
 *
 * READY comes from ABSENT at once if a kernel has filled the slot (adopt).
 *
 * No wait is endless. A wait gives up when neither disk nor link has moved a byte for the I/O
 * time-out, or when the waiting step is cancelled. Its request stays LOADING or COPYING, because
 * its memory may still be written to. If the bytes arrive after all, the request becomes READY and
 * the mover goes on.
 *
 * A mover without a device is done when the bytes are in host memory. With a device, a second stage
 * copies them from host memory over the device's link. Both stages run at the same time. A request
 * may name an expert that still lies in the device's slot. That expert is first saved to host
 * memory, over the link's other direction; meanwhile the request waits in its queue, or is read.
 * Only then is the slot overwritten. If a save fails, only that copy is lost.
 *
 * Each stage has a queue for each cause: demand before verification before prefetch. A queued
 * request can be cancelled, or raised to a more urgent cause (this is how duplicates merge). The
 * mover hands only a few prefetches to the disk at a time, and a few copies to the link, so a
 * demand never waits behind more than those. A slot has at most one request. So the number of slots
 * bounds the queues, and nothing is allocated. */
#ifndef MOE_OFFLOAD_MOVER_H
#define MOE_OFFLOAD_MOVER_H

#include "offload/io/range_reader.h"
#include "offload/weight_sums.h"
#include "offload/slot_pages.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_mover moe_mover;

typedef enum moe_move_cause {
    MOE_CAUSE_DEMAND,
    MOE_CAUSE_VERIFY,
    MOE_CAUSE_PREFETCH,
    MOE_CAUSE_COUNT
} moe_move_cause;

typedef enum moe_slot_state {
    MOE_SLOT_ABSENT,
    MOE_SLOT_QUEUED,
    MOE_SLOT_LOADING,
    MOE_SLOT_STAGED, /* in host memory, waiting for the link */
    MOE_SLOT_COPYING,
    MOE_SLOT_READY,
    MOE_SLOT_FAILED
} moe_slot_state;

/* An expert that lies in the device_buffers of a move and must be copied to host memory first. */
typedef struct moe_save {
    const moe_expert_ref *expert; /* NULL: none */
    /* Host memory, for this save alone until the request has settled. */
    uint8_t *buffers[MOE_EXPERT_PARTS];
} moe_save;

typedef struct moe_move {
    const moe_expert_ref *expert;
    /* Host memory to read into; each buffer has room for the aligned superset of its part.
     * in_memory: the parts are in it already. The memory must stay until the request has
     * settled. */
    bool in_memory;
    uint8_t *buffers[MOE_EXPERT_PARTS];
    uint8_t *device_buffers[MOE_EXPERT_PARTS]; /* only for a mover with a device */
    moe_save save;                             /* only for a mover with a device */
    moe_weight_sums *sums; /* known checksums, and room for new ones; NULL: none */
    /* Index in `sums` of the first part's checksum. A part without a checksum is read from the
     * model's own files only, since nothing could show that a copy has the same bytes. */
    size_t first_sum;
    moe_move_cause cause;
} moe_move;

typedef struct moe_mover_options {
    moe_range_reader *reader; /* owned by the mover from here on, and closed with it */
    moe_device *device;       /* a device with a link; NULL: slots are in host memory */
    uint32_t n_slots;
    uint32_t max_prefetches; /* how many are handed to the disk at once; 0: 2 */
    uint64_t io_timeout_ns;  /* 0: 30 s */
} moe_mover_options;

typedef struct moe_mover_stats {
    /* Completed moves, by the cause that they had when they were taken. */
    uint64_t n_moves[MOE_CAUSE_COUNT];
    uint64_t bytes[MOE_CAUSE_COUNT];      /* expert bytes of these */
    uint64_t bytes_disk[MOE_CAUSE_COUNT]; /* expert bytes read from the files */
    uint64_t bytes_link;                  /* expert bytes copied to the device */
    uint64_t n_saves, bytes_saved;        /* experts copied back to host memory */
    uint64_t n_saves_lost;                /* saves that failed or were given up */
    uint64_t bytes_read; /* from the disk, aligned supersets and retries included */
    /* Cancelled requests; a demand is cancelled only if its pass was given up. */
    uint64_t n_cancelled;
    uint64_t n_failed;
    uint64_t n_checksum_retries;
    uint64_t n_retries;      /* repeated reads, whole or for the rest */
    uint64_t n_timeouts;     /* waits that ended because neither disk nor link moved a byte */
    double link_ns_per_byte; /* of copies, moving average; 0 before the first */
} moe_mover_stats;

/* Takes over options->reader, also on failure. */
int moe_mover_open(moe_mover **out, const moe_mover_options *options, moe_error *err);
/* Cancels queued requests and waits for reads and copies under way: at most twice the I/O time-out;
 * a quarter of it if a wait has timed out and nothing has arrived since; a second if a wait was
 * cancelled. False when a read or copy hangs: then the device may write into buffers given to the
 * mover at any later time, so they must be neither used nor freed. */
bool moe_mover_close(moe_mover **mover);

/* Sends a request for a slot, which must be ABSENT. */
void moe_mover_submit(moe_mover *mover, uint32_t slot, const moe_move *move);
/* Makes an ABSENT slot READY, because a kernel has copied the expert to buffers of the device. */
void moe_mover_adopt(moe_mover *mover, uint32_t slot,
                     uint8_t *const device_buffers[MOE_EXPERT_PARTS]);
/* Makes a QUEUED or STAGED request as urgent as cause; does nothing in other states. Returns
 * whether it has become more urgent. */
bool moe_mover_raise(moe_mover *mover, uint32_t slot, moe_move_cause cause);
/* yield: prefetches wait while anything more urgent is queued or under way, and one is made at a
 * time. This is for prefetches without a known use, which must delay demands as little as possible.
 * pages: is told of each prefetch that begins, until the next call; or NULL. */
void moe_mover_yield_prefetches(moe_mover *mover, bool yield, moe_slot_pages *pages);
/* Cancels a QUEUED or STAGED request, whose slot becomes ABSENT, and returns true; otherwise
 * returns false, also while the request's save is being copied. */
bool moe_mover_cancel(moe_mover *mover, uint32_t slot);
moe_slot_state moe_mover_state(const moe_mover *mover, uint32_t slot);
static inline bool moe_mover_is_end(moe_slot_state state)
{
    return state == MOE_SLOT_READY || state == MOE_SLOT_FAILED;
}
bool moe_mover_has_ended(const moe_mover *mover, uint32_t slot);
/* For a request that has ended: whether its state made a change that is not in the drawing above,
 * which is a fault of this library. The request has then FAILED, and its memory may still be
 * written to. */
bool moe_mover_is_broken(const moe_mover *mover, uint32_t slot);
/* How many requests have become READY or FAILED; counted after the state changes. */
uint64_t moe_mover_n_finished(const moe_mover *mover);
/* Where part p of a READY slot begins: on the device if there is one, else in host memory. */
const uint8_t *moe_mover_data(const moe_mover *mover, uint32_t slot, int part);
/* Where part p is in host memory, for a request that has settled; NULL when it was not read. */
const uint8_t *moe_mover_host_data(const moe_mover *mover, uint32_t slot, int part);
/* Whether the request's save is complete, for a request that has settled or was cancelled. */
bool moe_mover_has_saved(const moe_mover *mover, uint32_t slot);
/* away: gives the pages of [memory, memory + bytes), which lie in the reader's arena, back to the
 * system; no request may be queued or under way. Not away: prepares them for use again. Returns
 * false if the kernel still holds the pages. */
bool moe_mover_set_away(moe_mover *mover, void *memory, size_t bytes, bool away);
/* Makes a READY or FAILED slot ABSENT. */
void moe_mover_reset(moe_mover *mover, uint32_t slot);

/* is_cancelled() is called now and then during a wait; the wait ends when it returns true. It must
 * be quick and must not call the library. NULL: never cancelled. */
typedef struct moe_wait_cancel {
    bool (*is_cancelled)(void *user);
    void *user;
} moe_wait_cancel;

/* Returns when at least one of the slots is READY or FAILED. MOE_ERR_IO: the disk or the link
 * hangs; comes sooner if that is known already; *hung: the slot that err names. MOE_ERR_CANCELLED
 * comes within a fiftieth of a second of cancelling. After both errors the requests are still under
 * way. */
int moe_mover_wait(moe_mover *mover, const uint32_t *slots, uint32_t n,
                   const moe_wait_cancel *cancel, uint32_t *hung, moe_error *err);
/* The average time between two experts that are read together; 0: not known. */
uint64_t moe_mover_read_ns(const moe_mover *mover);
/* How long it will probably take until all of n requests that were submitted at begin_ns are READY;
 * 0: not known. */
uint64_t moe_mover_expected_ns(const moe_mover *mover, uint32_t n, uint64_t begin_ns);
/* Notes that the waiting step was cancelled. If the mover is closed before anything more arrives,
 * closing waits half a second at most. */
void moe_mover_abandon(moe_mover *mover);
/* The last failure of a request other than a prefetch: status, slot, and message. */
int moe_mover_last_error(moe_mover *mover, uint32_t *slot, moe_error *err);
/* True when nothing is queued or being read for demand or verification. */
bool moe_mover_is_idle(const moe_mover *mover);
void moe_mover_get_stats(moe_mover *mover, moe_mover_stats *stats);
void moe_mover_describe(const moe_mover *mover, char *out, size_t size);

#endif
