/* SPDX-License-Identifier: MIT */
#include "offload/memory_follow.h"

#include <stdio.h>

#include "runtime/base/error.h"

#define SECOND_NS     1000000000u
#define INTERVAL_NS   (SECOND_NS / 10)
#define CALM_NS       (5 * (uint64_t)SECOND_NS)
#define STALLED_SHARE 10 /* of the time: a tenth */
#define MIB           1048576.0

void moe_memory_follow_open(moe_memory_follow *follow, moe_memory_border *border,
                            const moe_memory_plan *plan, uint64_t reserve, moe_log_fn log,
                            void *user)
{
    const uint64_t slots = plan->has_device_memory ? plan->host_cache : plan->expert_cache;
    *follow = (moe_memory_follow){
        .border = border,
        .reserve = reserve,
        .slots = slots,
        .fixed = plan->budget - moe_memory_border_ram_left(plan) - slots,
        .first_session = plan->session_state + (plan->has_device_memory ? 0 : plan->kv_cache),
        .log = log,
        .user = user,
        .root = "",
    };
}

static int64_t claim_of(const moe_memory_follow *f)
{
    const moe_memory_border *b = f->border;
    uint64_t sessions = b->ram_granted > f->first_session ? b->ram_granted : f->first_session;
    return (int64_t)(f->fixed + f->slots - b->ram_taken - b->ram_yielded + sessions);
}

int64_t moe_memory_follow_decide(moe_memory_follow *f, const moe_memory_room *room, uint64_t now_ns)
{
    const int64_t reserve = (int64_t)f->reserve;
    const int64_t over = claim_of(f) - ((int64_t)room->process + room->available - reserve);
    const uint64_t stalled_ns = 1000 * (room->stall_us - f->stall_us);
    /* Tasks in control groups with a limit of their own may wait while the machine has plenty of
     * memory. Giving memory back would not help them. */
    const bool tight = room->available < 2 * reserve;
    const bool stalls = f->looked_ns > 0 && room->stall_us > f->stall_us &&
                        stalled_ns > (now_ns - f->looked_ns) / STALLED_SHARE;
    f->looked_ns = now_ns;
    f->stall_us = room->stall_us;
    if (over > reserve / 2 || (stalls && tight)) {
        f->pressed_ns = now_ns;
        return stalls && over < reserve / 4 ? reserve / 4 : over;
    }
    return over < 0 && f->border->ram_yielded > 0 && now_ns - f->pressed_ns >= CALM_NS ? over : 0;
}

/* Logs the first change, and each further change of a sixteenth of the slots. */
static void tell(moe_memory_follow *f, const moe_memory_room *room)
{
    const uint64_t yielded = f->border->ram_yielded;
    const uint64_t moved =
        yielded > f->told_bytes ? yielded - f->told_bytes : f->told_bytes - yielded;
    if (f->log == NULL || moved == 0 ||
        (moved < f->slots / 16 && f->told_bytes > 0 && yielded > 0)) {
        return;
    }
    char line[MOE_ERROR_MESSAGE_SIZE];
    snprintf(line, sizeof line,
             yielded > f->told_bytes
                 ? "other programs need memory (%.0f MiB available): of %.0f MiB of expert slots "
                   "%.0f are given back"
                 : "memory is available again (%.0f MiB): of %.0f MiB of expert slots %.0f stay "
                   "given back",
             (double)room->available / MIB, (double)f->slots / MIB, (double)yielded / MIB);
    f->log(line, f->user);
    f->told_bytes = yielded;
}

static void tell_locked(moe_memory_follow *f, const moe_memory_room *room)
{
    char line[MOE_ERROR_MESSAGE_SIZE];
    if (f->log != NULL && !f->told_locked) {
        snprintf(line, sizeof line,
                 "other programs need memory (%.0f MiB available), but the expert slots are "
                 "page-locked for the GPU and stay: options.host_memory sets their size",
                 (double)room->available / MIB);
        f->log(line, f->user);
        f->told_locked = true;
    }
}

int moe_memory_follow_look(moe_memory_follow *f, uint64_t now_ns, moe_error *err)
{
    if (f->border == NULL || now_ns - f->looked_ns < INTERVAL_NS) {
        return MOE_OK;
    }
    moe_memory_room room;
    moe_memory_room_read(&room, &f->place, f->root);
    const int64_t bytes = moe_memory_follow_decide(f, &room, now_ns);
    int status = MOE_OK;
    if (bytes > 0 && !moe_memory_border_yields(f->border)) {
        tell_locked(f, &room);
    } else if (bytes > 0) {
        (void)moe_memory_border_yield(f->border, (uint64_t)bytes, &status, err);
    } else if (bytes < 0) {
        (void)moe_memory_border_regain(f->border, (uint64_t)-bytes);
    }
    tell(f, &room);
    return status;
}
