/* SPDX-License-Identifier: MIT */
#include "runtime/engine/route_observer.h"

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

int moe_engine_attach_observer(moe_engine *engine, moe_route_observer *observer, moe_error *err)
{
    int status = observer->wants_probs
                     ? moe_pass_buffers_need_probs(&engine->buffers, engine->config.n_expert, err)
                     : MOE_OK;
    if (status != MOE_OK) {
        return status;
    }
    observer->next = engine->observers;
    engine->observers = observer;
    return MOE_OK;
}

void moe_engine_detach_observer(moe_engine *engine, moe_route_observer *observer)
{
    for (moe_route_observer **at = &engine->observers; *at != NULL; at = &(*at)->next) {
        if (*at == observer) {
            *at = observer->next;
            return;
        }
    }
}

int moe_observe_route(moe_engine *engine, const moe_route_event *event, moe_error *err)
{
    int status = MOE_OK;
    for (moe_route_observer *o = engine->observers; o != NULL && status == MOE_OK; o = o->next) {
        status = o->on_route(o->context, event, err);
    }
    return status;
}

int moe_observe_pass_end(moe_engine *engine, moe_error *err)
{
    int status = MOE_OK;
    for (moe_route_observer *o = engine->observers; o != NULL && status == MOE_OK; o = o->next) {
        if (o->on_pass_end != NULL) {
            status = o->on_pass_end(o->context, engine->n_passes, err);
        }
    }
    return status;
}
