/* SPDX-License-Identifier: MIT */
/* Tells the program how far a pass is while it runs. A hook, which sees layers end and waits begin;
 * it tells at most ten times a second, whatever the passes take. */
#ifndef MOE_PASS_PROGRESS_H
#define MOE_PASS_PROGRESS_H

#include <moe/types.h>

#include "runtime/pass/pass_hooks.h"

/* How far a pass, or a panel, is. */
typedef struct moe_pass_clock {
    uint64_t began_ns, read_before;
    uint32_t n_rows;
    uint32_t layer;              /* under way */
    uint32_t n_done;             /* layers with experts that are done, */
    uint32_t rows;               /* and rows of the next one, */
    uint64_t done_ns, done_read; /* and when that was, and what had been read */
} moe_pass_clock;

typedef struct moe_pass_watch {
    moe_pass_hook hook;
    moe_pass_progress_fn tell;
    void *user;
    uint32_t n_with_experts;    /* layers that have experts */
    uint64_t told_ns;           /* when something was told last, of any pass */
    moe_pass_clock pass, panel; /* of those under way, */
    moe_pass_clock *at_work;    /* and the one that computes */
} moe_pass_watch;

/* A panel has come to its end, whatever it was. */
static inline void moe_pass_watch_end_panel(moe_pass_watch *watch)
{
    watch->panel.n_rows = 0;
}

/* Replaces what was told before; tell NULL: nothing is told. Between passes only. */
int moe_pass_watch_set(moe_pass_watch *watch, moe_runner *runner, moe_pass_progress_fn tell,
                       void *user, moe_error *err);

#endif
