/* SPDX-License-Identifier: MIT */
/* Replaces the routers' choice by a recorded routing, so that a model with random weights has the
 * cache behaviour of a real one. The text is then meaningless, and all figures say so.
 */
#ifndef MOE_LAB_ROUTE_REPLAY_H
#define MOE_LAB_ROUTE_REPLAY_H

#include <moe/trace.h>

#include "runtime/pass/pass_hooks.h"

typedef struct moe_route_replay {
    moe_pass_hook hook;
    moe_trace *trace;
} moe_route_replay;

/* Opens the trace, checks that it has the model's geometry, and adds a hook to the runner: a row at
 * position p takes the experts of the trace's row p modulo its rows. */
int moe_route_replay_open(moe_route_replay **out, const char *path, moe_runner *runner,
                          moe_error *err);
void moe_route_replay_close(moe_route_replay **replay);

#endif
