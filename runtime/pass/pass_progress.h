/* SPDX-License-Identifier: MIT */
/* A hook that tells the calling program how far a running pass is. It learns when layers end and
 * waits begin, and reports at most ten times a second. */
#ifndef MOE_PASS_PROGRESS_H
#define MOE_PASS_PROGRESS_H

#include <moe/types.h>

#include "runtime/pass/pass_hooks.h"

/* How far a pass, or a panel, is. */
typedef struct moe_pass_clock {
    uint64_t began_ns, read_before;
    uint32_t n_rows;
    uint32_t layer;              /* the layer under way */
    uint32_t n_done;             /* layers with experts that have been computed */
    uint32_t rows;               /* rows of the next such layer that have been computed */
    uint64_t done_ns, done_read; /* at the last change of the two: the time, and the bytes read */
} moe_pass_clock;

typedef struct moe_pass_watch {
    moe_pass_hook hook;
    moe_pass_progress_fn tell;
    void *user;
    uint32_t n_with_experts;      /* layers that have experts */
    uint64_t told_ns;             /* when tell() was last called, for any pass */
    moe_pass_clock pass, panel;   /* the pass and the panel under way */
    moe_pass_clock *at_work;      /* which of the two is computing */
    const moe_panel_block *block; /* the panel's block under way, or NULL */
} moe_pass_watch;

/* Notes that a panel has ended, finished or not. */
static inline void moe_pass_watch_end_panel(moe_pass_watch *watch)
{
    watch->panel.n_rows = 0;
}

/* Sets the function that is called with progress from now on; NULL: none. Call it between passes
 * only. */
int moe_pass_watch_set(moe_pass_watch *watch, moe_runner *runner, moe_pass_progress_fn tell,
                       void *user, moe_error *err);

#endif
