/* SPDX-License-Identifier: MIT */
/* Who wants to know what the routers chose: trace recording, calibration. The engine tells them
 * after each layer's routing, on the thread that runs the pass. Without observers it costs one
 * comparison a layer. */
#ifndef MOE_ENGINE_ROUTE_OBSERVER_H
#define MOE_ENGINE_ROUTE_OBSERVER_H

#include <moe/moe.h>

/* Which token a row of a pass is. */
typedef struct moe_row_id {
    uint64_t sequence; /* number of its session, in the order of their creation, from 0 */
    uint32_t position;
} moe_row_id;

typedef struct moe_route_event {
    uint64_t pass;
    uint32_t layer;
    uint32_t n_rows;
    uint32_t n_expert;
    uint32_t n_used;
    const moe_row_id *rows;  /* [n_rows] */
    const uint32_t *experts; /* [n_rows][n_used], best first */
    const float *weights;    /* [n_rows][n_used], as they are mixed */
    const float *probs;      /* [n_rows][n_expert]; NULL unless some observer wants them */
    const float *hidden;     /* device, [n_rows][n_embd]: what the router saw */
} moe_route_event;

typedef struct moe_route_observer moe_route_observer;
struct moe_route_observer {
    bool wants_probs;
    /* An error fails the pass. */
    int (*on_route)(void *context, const moe_route_event *event, moe_error *err);
    /* The pass has succeeded; a pass that fails ends without this. May be NULL. */
    int (*on_pass_end)(void *context, uint64_t pass, moe_error *err);
    void *context;
    moe_route_observer *next; /* the engine's */
};

/* The observer must stay where it is until it is detached. Between passes only. */
int moe_engine_attach_observer(moe_engine *engine, moe_route_observer *observer, moe_error *err);
void moe_engine_detach_observer(moe_engine *engine, moe_route_observer *observer);

/* For the engine's passes: tells every observer. */
int moe_observe_route(moe_engine *engine, const moe_route_event *event, moe_error *err);
int moe_observe_pass_end(moe_engine *engine, moe_error *err);

#endif
