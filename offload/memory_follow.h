/* SPDX-License-Identifier: MIT */
/* Lets the expert slots follow the machine's memory, if no budget is stated. Ten times a second it
 * compares the memory that this process holds or may still come to hold (its claim) with the memory
 * that the process may have:
 *
 *    may have = what it holds + what is available - reserve
 *
 *  claim > may have by half of the reserve:    close slots, down to `may have`
 *  tasks wait for memory, and little is left:  close more slots, a quarter of the reserve
 *  neither for five seconds, claim < may have: open closed slots, up to `may have`
 *
 * The claim counts open slots whole, so memory that they do not fill yet is never taken for free.
 * Slots are closed between layers or passes; no text depends on it. Slots that are page-locked for
 * a GPU stay: its driver unlocks whole blocks (of up to 1 GiB), and stops its copies meanwhile. */
#ifndef MOE_OFFLOAD_MEMORY_FOLLOW_H
#define MOE_OFFLOAD_MEMORY_FOLLOW_H

#include "offload/memory_border.h"
#include "runtime/host/memory_limits.h"

typedef struct moe_memory_follow {
    /* Set at open, never changed. */
    moe_memory_border *border; /* NULL: the slots do not follow */
    uint64_t reserve;          /* bytes that stay available to others */
    uint64_t fixed;            /* bytes of the claim that are neither slots nor granted */
    uint64_t slots;            /* bytes of all slots */
    uint64_t first_session;    /* bytes that are kept for the first session */
    moe_log_fn log;
    void *user;
    const char *root; /* where /proc and the control groups are: "" except in tests */

    moe_cgroup_place place; /* of the process, found at the first look */
    uint64_t looked_ns;
    uint64_t pressed_ns; /* when others last needed memory */
    uint64_t stall_us;   /* at the last look */
    uint64_t told_bytes; /* bytes given to others when the log was last told */
    bool told_locked;    /* ... that nothing can be given */
} moe_memory_follow;

/* reserve: bytes. The border must be open, and outlive it. */
void moe_memory_follow_open(moe_memory_follow *follow, moe_memory_border *border,
                            const moe_memory_plan *plan, uint64_t reserve, moe_log_fn log,
                            void *user);

/* What to do now. > 0: close slots of so many bytes; < 0: open slots of so many. */
int64_t moe_memory_follow_decide(moe_memory_follow *follow, const moe_memory_room *room,
                                 uint64_t now_ns);

/* Looks, unless the last look was less than a tenth of a second ago, and closes or opens slots.
 * Returns an error of waiting for moves under way. */
int moe_memory_follow_look(moe_memory_follow *follow, uint64_t now_ns, moe_error *err);

#endif
