/* SPDX-License-Identifier: MIT */
/* A hook that receives the routers' choices: for trace recording, calibration, learning. */
#ifndef MOE_PASS_ROUTE_OBSERVER_H
#define MOE_PASS_ROUTE_OBSERVER_H

#include "runtime/pass/pass_hooks.h"

typedef struct moe_route_event {
    uint64_t pass;
    uint32_t layer;
    uint32_t n_rows;
    uint32_t n_expert;
    uint32_t n_used;
    const moe_row_id *rows;  /* [n_rows] */
    const uint32_t *experts; /* [n_rows][n_used], best first; UINT32_MAX: a lossy mode dropped it */
    const float *weights;    /* [n_rows][n_used], as used for mixing */
    const float *probs;      /* [n_rows][n_expert]; NULL unless some hook wants them */
    const float *hidden;     /* device, [n_rows][n_embd]: the router's input */
} moe_route_event;

typedef struct moe_route_observer {
    bool wants_probs;
    /* An error fails the pass. */
    int (*on_route)(void *context, const moe_route_event *event, moe_error *err);
    /* Called after a pass that succeeded. May be NULL. */
    int (*on_pass_end)(void *context, uint64_t pass, moe_error *err);
    void *context;
    moe_pass_hook hook; /* filled in by moe_runner_attach_observer() */
} moe_route_observer;

/* The observer must stay in place until it is detached. Call between passes only. While it is
 * attached the host routes every pass except drafts. */
int moe_runner_attach_observer(moe_runner *runner, moe_route_observer *observer, moe_error *err);
void moe_runner_detach_observer(moe_runner *runner, moe_route_observer *observer);

#endif
