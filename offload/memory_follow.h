/* SPDX-License-Identifier: MIT */
/* Lets the expert slots follow the machine's memory, if no budget is stated. Ten times a second it
 * compares what this process holds or may still come to hold (its claim) with what it may have:
 *
 *    may have = what it holds + what is available - reserve
 *
 *  claim > may have by half of the reserve    slots are closed down to `may have`
 *  tasks wait for memory, and little is left  more slots are closed, a quarter of the reserve
 *  neither for five seconds, claim < may have closed slots are opened again up to `may have`
 *
 * So memory that open slots do not fill yet is never counted as free. Slots are closed between
 * layers or passes; no text depends on it. */
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
    const char *root; /* of /proc and the control groups: "" except in tests */

    uint64_t looked_ns;
    uint64_t pressed_ns; /* when others needed memory for the last time */
    uint64_t stall_us;   /* at the last look */
    uint64_t told_bytes; /* yielded when the log was last told */
} moe_memory_follow;

/* reserve: bytes. The border must be open, and outlive it. */
void moe_memory_follow_open(moe_memory_follow *follow, moe_memory_border *border,
                            const moe_memory_plan *plan, uint64_t reserve, moe_log_fn log,
                            void *user);

/* What to do about the memory: > 0: close slots of so many bytes; < 0: open so many. */
int64_t moe_memory_follow_decide(moe_memory_follow *follow, const moe_memory_room *room,
                                 uint64_t now_ns);

/* Looks, unless it did within the last tenth of a second, and closes or opens slots. Returns an
 * error of waiting for moves that are under way. */
int moe_memory_follow_look(moe_memory_follow *follow, uint64_t now_ns, moe_error *err);

#endif
