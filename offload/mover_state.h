/* SPDX-License-Identifier: MIT */
/* Shared by the mover's own files. Each file calls only those before it in this list:
 * mover_requests.c (requests, queues, ends, waits), mover_link.c (copies to and from a device),
 * mover_thread.c (the thread, and the stage that reads), mover_open.c. */
#ifndef MOE_OFFLOAD_MOVER_STATE_H
#define MOE_OFFLOAD_MOVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "offload/mover.h"
#include "runtime/base/moe_assert.h"

#define MOE_MOVER_NONE UINT32_MAX
/* Copies handed to the link at once: one under way, and the next so that the link does not idle. */
#define MOE_MOVER_COPIES 2u
/* Waits for a disk or link that is known to hang are shorter by this factor. */
#define MOE_MOVER_STALLED_DIVISOR 8u

typedef enum moe_mover_stage { MOE_STAGE_READ, MOE_STAGE_COPY, MOE_STAGE_COUNT } moe_mover_stage;

/* The state of a request's save. It is WAITING or UNDER_WAY only while the request is QUEUED,
 * LOADING or STAGED. */
typedef enum moe_save_state {
    MOE_SAVE_NONE,
    MOE_SAVE_WAITING, /* in the list of saves */
    MOE_SAVE_UNDER_WAY,
    MOE_SAVE_DONE,
    MOE_SAVE_LOST
} moe_save_state;

typedef struct moe_mover_slot {
    _Atomic int state; /* moe_slot_state */
    /* Written by submit while ABSENT, read by the mover from LOADING on. */
    moe_move move;
    /* Links of its queue, under the lock. */
    uint32_t next, previous;
    moe_save_state save_state; /* under the lock */
    uint32_t next_save;        /* link of the list of saves, under the lock */
    /* Only the mover touches these from LOADING on; anyone may read data once READY. */
    uint8_t n_parts_left;
    /* How often the part was read again after a wrong checksum. */
    uint8_t retried[MOE_EXPERT_PARTS];
    /* The sources that delivered wrong checksums, bits as in moe_range_done. */
    uint8_t doubted[MOE_EXPERT_PARTS];
    int status;
    uint64_t begin_ns; /* when reading began */
    bool in_memory;    /* `data` is complete */
    bool awaits_save;  /* reading has failed, and the request ends when its save ends */
    bool broken;       /* see moe_mover_is_broken(); stays so */
    const uint8_t *data[MOE_EXPERT_PARTS];
} moe_mover_slot;

typedef struct moe_mover_queue {
    uint32_t first, last;
} moe_mover_queue;

typedef struct moe_mover_copy {
    uint64_t ticket;
    uint64_t begin_ns;
    uint32_t slot;
} moe_mover_copy;

/* A request of the owner that the thread shall call the reader's set_away(). */
typedef struct moe_mover_away {
    void *memory; /* NULL: no request */
    size_t bytes;
    bool away;
    bool done; /* the reader's answer */
} moe_mover_away;

struct moe_mover {
    /* Set at open, never changed. */
    moe_range_reader *reader;
    moe_device *device; /* NULL: no second stage */
    uint32_t n_slots;
    uint32_t max_prefetches;
    uint64_t io_timeout_ns;
    pthread_t thread;

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t requested; /* the mover waits here when nothing is in flight */
    pthread_cond_t finished;  /* all other threads wait here */
    moe_mover_queue queues[MOE_STAGE_COUNT][MOE_CAUSE_COUNT];
    moe_mover_queue saves; /* saves that are WAITING */
    bool stop;
    bool prefetches_yield;
    moe_slot_pages *pages; /* is told of prefetches that begin; or NULL */
    moe_mover_away away;
    uint64_t last_progress_ns; /* when bytes last arrived */
    bool stalled;              /* a wait has given up, and nothing has arrived since */
    bool abandoned;            /* a wait was cancelled, and nothing has arrived since */
    bool ended;                /* the thread has ended; hangs: while something was in flight */
    bool hangs;
    moe_mover_stats stats;
    int last_status;
    uint32_t last_failed; /* the slot of the last failure */
    moe_error last_error;

    _Atomic uint32_t n_urgent; /* demands and verifications, queued or loading */
    _Atomic uint64_t n_finished;
    /* The average time between two experts while the disk is busy; when the last one came. */
    _Atomic uint64_t read_interval_ns, last_read_ns;

    /* Only the mover's thread touches these. */
    uint32_t n_ranges;                       /* ranges that are being read */
    uint32_t n_prefetches;                   /* prefetches that are being read */
    moe_mover_copy copies[MOE_MOVER_COPIES]; /* on the link, oldest first */
    uint32_t n_copies;
    moe_mover_copy saving[MOE_MOVER_COPIES]; /* UNDER_WAY, oldest first */
    uint32_t n_saving;
    uint64_t last_copy_ns; /* when the last finished copy was seen */
    uint64_t n_bytes_seen; /* bytes that the reader had read at the last look */

    moe_mover_slot *slots; /* [n_slots] */
};

_Static_assert(1 + MOE_RANGE_COPIES <= 8, "`doubted` has a bit for each source");
_Static_assert(MOE_EXPERT_PARTS <= MOE_MAX_COPY_RANGES, "an expert travels as one copy");
_Static_assert(MOE_MOVER_COPIES <= MOE_MAX_COPIES, "the link takes as many");

static inline moe_slot_state moe_mover_get_state(const moe_mover_slot *slot)
{
    return (moe_slot_state)atomic_load_explicit(&slot->state, memory_order_acquire);
}

/* Whether the change is an arrow of the drawing in mover.h. */
static inline bool moe_mover_is_edge(moe_slot_state from, moe_slot_state to)
{
    switch (from) {
    case MOE_SLOT_ABSENT:
        return to == MOE_SLOT_QUEUED || to == MOE_SLOT_STAGED || to == MOE_SLOT_ABSENT ||
               to == MOE_SLOT_READY; /* adopted */
    case MOE_SLOT_QUEUED:
        return to == MOE_SLOT_LOADING || to == MOE_SLOT_ABSENT;
    case MOE_SLOT_LOADING:
        return to == MOE_SLOT_READY || to == MOE_SLOT_STAGED || to == MOE_SLOT_FAILED;
    case MOE_SLOT_STAGED:
        return to == MOE_SLOT_COPYING || to == MOE_SLOT_ABSENT;
    case MOE_SLOT_COPYING:
        return to == MOE_SLOT_READY || to == MOE_SLOT_FAILED;
    case MOE_SLOT_READY:
    case MOE_SLOT_FAILED:
        return to == MOE_SLOT_ABSENT;
    }
    return false;
}

/* Sets a slot's state; no other function does. A change that is not an arrow of the drawing in
 * mover.h ends the request as broken. */
static inline void moe_mover_set_state(moe_mover_slot *slot, moe_slot_state state)
{
    bool is_edge = moe_mover_is_edge(moe_mover_get_state(slot), state);
    MOE_ASSERT(is_edge);
    if (!is_edge) {
        slot->broken = true;
        state = MOE_SLOT_FAILED;
    }
    atomic_store_explicit(&slot->state, state, memory_order_release);
}

/* For assertions: some thread holds the lock. */
static inline bool moe_mover_is_locked(const moe_mover *mover)
{
    return pthread_mutex_trylock((pthread_mutex_t *)&mover->lock) != 0;
}

/* Under the lock: queues, states and counts agree. O(slots). */
bool moe_mover_queues_are_sane(const moe_mover *mover);
/* The same; also, the thread's own fields agree with the queues. The thread calls it when it has
 * begun everything that it may begin. */
bool moe_mover_is_sane(const moe_mover *mover);

/* Puts a request at the end of its queue; takes it out of its queue. Both under the lock. */
void moe_mover_enqueue(moe_mover *mover, uint32_t index, moe_mover_stage stage);
void moe_mover_dequeue(moe_mover *mover, uint32_t index, moe_mover_stage stage);
/* Counts demands and verifications that are queued or under way. */
void moe_mover_count_urgent(moe_mover *mover, const moe_mover_slot *slot);
void moe_mover_no_longer_urgent(moe_mover *mover, const moe_mover_slot *slot);
/* Whether a save keeps the slot's device memory from being overwritten. */
static inline bool moe_mover_is_saving(const moe_mover_slot *slot)
{
    return slot->save_state == MOE_SAVE_WAITING || slot->save_state == MOE_SAVE_UNDER_WAY;
}
/* The list of saves, under the lock. The first function puts the request's save at the end, the
 * second takes it off the list, the third cancels the save if it is on the list. */
void moe_mover_enqueue_save(moe_mover *mover, uint32_t index);
void moe_mover_leave_saves(moe_mover *mover, uint32_t index);
void moe_mover_give_up_save(moe_mover *mover, uint32_t index);
/* Ends the request; slot->status says how. */
void moe_mover_finish(moe_mover *mover, uint32_t index);
/* The mover's thread. */
void *moe_mover_main(void *mover);
/* Makes the thread look at its queues again. Call it under the lock, because the thread may be
 * about to close the reader; the owner may also call it before closing the mover. */
void moe_mover_wake(moe_mover *mover);
/* Stops the link from telling the mover of finished copies. */
void moe_mover_leave_link(moe_mover *mover);
/* Notes that bytes have arrived, so that waits go on. Under the lock. */
void moe_mover_note_progress(moe_mover *mover);
/* How long closing the mover waits without progress. Under the lock. */
uint64_t moe_mover_closing_patience(const moe_mover *mover);
/* pthread_cond_timedwait() for conditions made by moe_mover_open(). */
void moe_mover_wait_until(moe_mover *mover, pthread_cond_t *condition, uint64_t deadline_ns);
/* Keeps slot->status and its message as the last error. */
void moe_mover_record_error(moe_mover *mover, uint32_t index, const moe_error *error);

/* The second stage, on the mover's thread, under the lock. take_done_copy() takes the oldest copy
 * off the list if it is done; take_staged() makes the most urgent STAGED request COPYING, if the
 * link has room for one more. */
uint32_t moe_mover_take_done_copy(moe_mover *mover);
uint32_t moe_mover_take_staged(moe_mover *mover);
/* Hands a request to the link, without the lock. */
void moe_mover_start_copy(moe_mover *mover, uint32_t index);

/* Saves, on the mover's thread, under the lock. take_done_save() ends the oldest save if its copy
 * is done; otherwise it returns false. *index: out, the save's request if that has ended, too, else
 * MOE_MOVER_NONE. */
bool moe_mover_take_done_save(moe_mover *mover, uint32_t *index);
uint32_t moe_mover_take_save(moe_mover *mover);
void moe_mover_start_save(moe_mover *mover, uint32_t index);

#endif
