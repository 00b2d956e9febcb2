/* SPDX-License-Identifier: MIT */
/* What the expert store knows of a slot of the device: one record a slot. The cache knows which
 * expert is in it (expert_cache.h), the mover how far a request has come (mover.h). All else about
 * the slot is here; only expert_store_slots.c writes it, on the store's thread.
 *
 * A slot has one use. Each change of use has one function, and no other change is allowed:
 *
 *    from         to         function             what happens
 *    EMPTY        GIVEN      moe_store_give()     the cache has given the slot to an expert
 *    RESIDENT     GIVEN      moe_store_give()     ... and evicted another one for it
 *    GIVEN        MOVING     moe_store_submit()   the mover is asked to bring the expert
 *    MOVING       RESIDENT   moe_store_settle()   it has arrived
 *    MOVING       GIVEN      moe_store_settle()   it could not be read or copied
 *    MOVING       GIVEN      moe_store_cancel()   its request had not begun
 *    GIVEN        RESIDENT   moe_store_adopt()    a kernel has put it there
 *    GIVEN        EMPTY      moe_store_drop()     the expert gives the slot up
 *    RESIDENT     EMPTY      moe_store_drop()     likewise
 *    EMPTY        CLOSED     moe_store_close()    its pages go back to the system
 *    RESIDENT     CLOSED     moe_store_close()    ... and the expert is lost
 *    EMPTY        LENT       moe_store_close()    sessions use its memory
 *    RESIDENT     LENT       moe_store_close()    ... and the expert is lost
 *    CLOSED, LENT EMPTY      moe_store_reopen()   it will be used again
 *    any          RETIRED    any of these, when the change would be none of the above
 *
 * A failed, cancelled or timed-out layer leaves slots MOVING, with the hold AHEAD in place of WAVE;
 * so does every move that no layer waits for (prefetches, foresight, a warm start). A slot leaves
 * MOVING through settle() or cancel() alone, and both release what the request held in the host
 * tier: so nothing can be given a slot whose request has not been settled.
 *
 * Holds say who needs the expert to stay. Each is one pin in the cache, and each is set and
 * released by its owner. A slot that is GIVEN or MOVING has at least one, except between give() and
 * the hold that follows it.
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
    MOE_USE_GIVEN,    /* an expert has it; its bytes are not requested (any more) */
    MOE_USE_MOVING,   /* a request brings its expert */
    MOE_USE_RESIDENT, /* its expert's bytes are there */
    MOE_USE_CLOSED,
    MOE_USE_LENT,
    MOE_USE_RETIRED,
    MOE_USE_COUNT
} moe_slot_use;

/* Bits. */
typedef enum moe_slot_hold {
    MOE_HOLD_WAVE = 1,     /* the layer at work uses the expert */
    MOE_HOLD_AHEAD = 2,    /* it is MOVING and no layer waits for it; listed in ahead */
    MOE_HOLD_FORESEEN = 4, /* a draft foresees it, until its layer's turn; listed in foreseen */
    MOE_HOLD_KEPT = 8      /* a draft, or the store's options, keep it from pass to pass */
} moe_slot_hold;

typedef struct moe_slot_record {
    uint8_t use;   /* moe_slot_use */
    uint8_t holds; /* moe_slot_hold bits */
    /* While MOVING: the expert that the request saves from the device before it takes the slot;
     * MOE_KEY_NONE: none. It holds a slot of the host tier, as the request itself does. */
    uint32_t saved_key;
    /* The cause that brought the expert ahead of need, and the pass it was for (1 + its number; 0:
     * it was not brought so). */
    moe_move_cause brought_by;
    uint64_t brought_pass;
} moe_slot_record;

/* What settle() says of a slot. */
typedef enum moe_slot_outcome {
    MOE_OUTCOME_NONE,    /* it was not MOVING */
    MOE_OUTCOME_MOVING,  /* it still is */
    MOE_OUTCOME_ARRIVED, /* it has become RESIDENT */
    MOE_OUTCOME_FAILED   /* it has become GIVEN again, or RETIRED */
} moe_slot_outcome;

#endif
