/* SPDX-License-Identifier: MIT */
/* The lifetime of an engine: it is freed when the last object that points into it is closed. */
#include "runtime/engine/engine_parts.h"

/* Users have a const engine, but their number is counted in it. */
void moe_engine_hold(const moe_engine *engine)
{
    atomic_fetch_add(&((moe_engine *)engine)->n_users, 1);
}

void moe_engine_release(const moe_engine *engine)
{
    moe_engine *held = (moe_engine *)engine;
    if (atomic_fetch_sub(&held->n_users, 1) == 0) {
        held->destroy(held);
    }
}

void moe_engine_close(moe_engine **engine)
{
    if (engine != NULL && *engine != NULL) {
        moe_engine_release(*engine);
        *engine = NULL;
    }
}
