/* SPDX-License-Identifier: MIT */
/* The mover: one thread that brings experts from the files into slots. Everybody else asks, and
 * sees a slot's state:
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
 * Nothing is waited for without end. When neither disk nor link has moved a byte for the io timeout
 * while somebody waits, or who waits is cancelled, the wait gives up. What is under way stays
 * LOADING or COPYING, since its memory may still be written to; should it come after all, it
 * becomes READY, and the mover goes on.
 *
 * A mover without a device ends with the bytes in host memory. With one, there is a second stage:
 * the host memory's bytes travel over the device's link; both stages go on at the same time.
 *
 * Queues are per stage and cause: demand before verification before prefetch. A queued request can
 * be raised to a more urgent cause (duplicates merge that way) or cancelled. Prefetches are handed
 * to the disk, and copies to the link, a few at a time, so that a demand never waits behind more
 * than those. A slot has at most one request, so the queue is bounded by the slots and nothing is
 * allocated. */
#ifndef MOE_OFFLOAD_MOVER_H
#define MOE_OFFLOAD_MOVER_H

#include "offload/io/range_reader.h"
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

typedef struct moe_move {
    const moe_expert_ref *expert;
    /* Host memory to read into, each buffer long enough for its part's aligned superset; or, when
     * in_memory, where the parts are already. It must stay until the request has settled. */
    bool in_memory;
    uint8_t *buffers[MOE_EXPERT_PARTS];
    uint8_t *device_buffers[MOE_EXPERT_PARTS]; /* of a mover with a device */
    const uint64_t *checksums;                 /* XXH3 of each part, or NULL */
    moe_move_cause cause;
} moe_move;

typedef struct moe_mover_options {
    moe_range_reader *reader; /* the mover's from here on; closed with it */
    moe_device *device;       /* that has a link; NULL: slots are in host memory */
    uint32_t n_slots;
    uint32_t max_prefetches; /* handed to the disk at once; 0: 2 */
    uint64_t io_timeout_ns;  /* 0: 30 s */
} moe_mover_options;

typedef struct moe_mover_stats {
    uint64_t n_moves[MOE_CAUSE_COUNT]; /* completed, by the cause they had when they were taken */
    uint64_t bytes[MOE_CAUSE_COUNT];   /* expert bytes of those */
    uint64_t bytes_disk[MOE_CAUSE_COUNT]; /* expert bytes read from the files */
    uint64_t bytes_link;                  /* expert bytes copied over the link */
    uint64_t bytes_read;  /* from the disk, aligned supersets and retries included */
    uint64_t n_cancelled; /* but for demands, of a pass that was given up */
    uint64_t n_failed;
    uint64_t n_checksum_retries;
    uint64_t n_retries;      /* reads of files that were asked for again, whole or for the rest */
    uint64_t n_timeouts;     /* waits that ended because disk or link gave no sign of life */
    double link_ns_per_byte; /* of copies, moving average; 0 before the first */
    uint64_t wait_ns;        /* that callers of moe_mover_wait() spent waiting */
} moe_mover_stats;

/* Takes over options->reader, also on failure. */
int moe_mover_open(moe_mover **out, const moe_mover_options *options, moe_error *err);
/* Cancels what is queued and waits for what is being read and copied, but no longer than twice the
 * io timeout; a quarter of it when a wait has given up, a second when one was cancelled, and
 * nothing has arrived since. False when something hangs: buffers that were given to the mover may
 * be written to for ever after, and must be neither used nor freed. */
bool moe_mover_close(moe_mover **mover);

/* The slot must be ABSENT. */
void moe_mover_submit(moe_mover *mover, uint32_t slot, const moe_move *move);
/* A QUEUED or STAGED request becomes as urgent as cause; anything else is left alone. */
void moe_mover_raise(moe_mover *mover, uint32_t slot, moe_move_cause cause);
/* A QUEUED or STAGED request is taken back and the slot is ABSENT: true. Otherwise false. */
bool moe_mover_cancel(moe_mover *mover, uint32_t slot);
moe_slot_state moe_mover_state(const moe_mover *mover, uint32_t slot);
/* How many requests have become READY or FAILED; counted after they have. */
uint64_t moe_mover_n_finished(const moe_mover *mover);
/* Where part p of a READY slot begins, on the device if there is one. */
const uint8_t *moe_mover_data(const moe_mover *mover, uint32_t slot, int part);
/* Where part p is in host memory, for a request that has settled; NULL when it did not get there.
 */
const uint8_t *moe_mover_host_data(const moe_mover *mover, uint32_t slot, int part);
/* The pages of [memory, memory + bytes) of the arena that the reader was given go back to the
 * system, or will be used again. Nothing is queued or under way. False: they are still held. */
bool moe_mover_set_away(moe_mover *mover, void *memory, size_t bytes, bool away);
/* READY or FAILED becomes ABSENT. */
void moe_mover_reset(moe_mover *mover, uint32_t slot);

/* Asked now and then while somebody waits; true: the wait ends. Must be quick and not call back.
 * is_cancelled may be NULL: never. */
typedef struct moe_wait_cancel {
    bool (*is_cancelled)(void *user);
    void *user;
} moe_wait_cancel;

/* Returns when at least one of the slots is READY or FAILED; or with MOE_ERR_IO when the disk or
 * the link hangs, soon if that is known already: *hung is the slot that err tells of. Or with
 * MOE_ERR_CANCELLED, within a fiftieth of a second; what is under way stays so, as after a hang. */
int moe_mover_wait(moe_mover *mover, const uint32_t *slots, uint32_t n,
                   const moe_wait_cancel *cancel, uint32_t *hung, moe_error *err);
/* Who waited has cancelled: until something arrives, closing waits half a second at most. */
void moe_mover_abandon(moe_mover *mover);
/* The last failure that was not a prefetch's: status, slot, and its line. */
int moe_mover_last_error(moe_mover *mover, uint32_t *slot, moe_error *err);
/* Nothing is queued or being read for demand or verification. */
bool moe_mover_is_idle(const moe_mover *mover);
void moe_mover_get_stats(moe_mover *mover, moe_mover_stats *stats);
void moe_mover_describe(const moe_mover *mover, char *out, size_t size);

#endif
