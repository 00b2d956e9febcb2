/* SPDX-License-Identifier: MIT */
/* What the expert store knows of a device slot: one record for each slot. The cache knows which
 * expert is in the slot (expert_cache.h), and the mover how far a request has come (mover.h). All
 * else is here. Only expert_store_slots.c writes it, on the store's thread.
 *
 * A slot has one use (moe_slot_use) and any number of holds. A hold says who needs the slot's
 * expert to stay:
 *
 *    WAVE       the layer that is being computed. A wave is the set of its experts that have slots
 *               at the same time
 *    AHEAD      a move that no layer waits for: a prefetch, foresight, a warm start
 *    FORESEEN   a draft that expects the expert to be used
 *    KEPT       a draft, or the store's options: the expert stays from pass to pass
 *
 * Each hold is one pin in the cache; its owner sets it and releases it.
 *
 * Each change of use has one function, and no other change is allowed:
 *
 *    from         to         function             what happens
 *    EMPTY        GIVEN      moe_store_give()     the cache has given the slot to an expert
 *    RESIDENT     GIVEN      moe_store_give()     ... and evicted another one for it
 *    GIVEN        MOVING     moe_store_submit()   the mover is asked to bring the expert
 *    MOVING       RESIDENT   moe_store_settle()   the expert has arrived
 *    MOVING       GIVEN      moe_store_settle()   the expert could not be read or copied
 *    MOVING       GIVEN      moe_store_cancel()   the request had not begun
 *    GIVEN        RESIDENT   moe_store_adopt()    a kernel has put the expert there
 *    GIVEN        EMPTY      moe_store_drop()     the expert gives the slot up
 *    RESIDENT     EMPTY      moe_store_drop()     likewise
 *    EMPTY        CLOSED     moe_store_close()    the slot's pages go back to the system
 *    RESIDENT     CLOSED     moe_store_close()    ... and the expert is lost
 *    EMPTY        LENT       moe_store_close()    sessions use the slot's memory
 *    RESIDENT     LENT       moe_store_close()    ... and the expert is lost
 *    CLOSED, LENT EMPTY      moe_store_reopen()   the slot will be used again
 *    any          RETIRED    all of these         the change is not in this table
 *
 * A slot that is GIVEN or MOVING has at least one hold, except between give() and the hold that
 * follows. When a layer fails, times out or is cancelled, its MOVING slots stay MOVING, and their
 * hold WAVE becomes AHEAD. A slot leaves MOVING only through settle() or cancel(), and both release
 * what the request held in the host tier. So the cache cannot give away a slot whose request has
 * not been settled.
 *
 * A slot is RETIRED after a change that is not lawful, which is a fault of this program. It is
 * never used again, since something may still write to it, and the layer fails with
 * MOE_ERR_INTERNAL. */
#ifndef MOE_OFFLOAD_SLOT_RECORD_H
#define MOE_OFFLOAD_SLOT_RECORD_H

#include <stdint.h>

#include "offload/mover.h"

typedef enum moe_slot_use {
    MOE_USE_EMPTY,    /* no expert */
    MOE_USE_GIVEN,    /* the slot has an expert whose bytes are not requested (any more) */
    MOE_USE_MOVING,   /* a request brings its expert */
    MOE_USE_RESIDENT, /* its expert's bytes are there */
    MOE_USE_CLOSED,
    MOE_USE_LENT,
    MOE_USE_RETIRED,
    MOE_USE_COUNT
} moe_slot_use;

/* Who needs the expert to stay (see above); bits of moe_slot_record.holds. */
typedef enum moe_slot_hold {
    MOE_HOLD_WAVE = 1,  /* the layer at work uses the expert */
    MOE_HOLD_AHEAD = 2, /* MOVING, and no layer waits for it; in the list `ahead` */
    /* A draft foresees the expert, until its layer's turn; in the list `foreseen`. */
    MOE_HOLD_FORESEEN = 4,
    MOE_HOLD_KEPT = 8 /* a draft, or the store's options, keep the expert from pass to pass */
} moe_slot_hold;

typedef struct moe_slot_record {
    uint8_t use;   /* moe_slot_use */
    uint8_t holds; /* moe_slot_hold bits */
    /* While MOVING: the expert that the request saves from the slot before it overwrites the
     * slot; MOE_KEY_NONE: none. The save holds a slot of the host tier, and so does the request
     * itself. */
    uint32_t saved_key;
    /* Why the expert was brought ahead of need, and 1 + the number of the pass that it was brought
     * for; 0: it was not brought ahead. */
    moe_move_cause brought_by;
    uint64_t brought_pass;
} moe_slot_record;

/* What settle() finds. */
typedef enum moe_slot_outcome {
    MOE_OUTCOME_NONE,    /* the slot was not MOVING */
    MOE_OUTCOME_MOVING,  /* the slot is still MOVING */
    MOE_OUTCOME_ARRIVED, /* the slot has become RESIDENT */
    MOE_OUTCOME_FAILED   /* the slot has become GIVEN again, or RETIRED */
} moe_slot_outcome;

#endif
