/* SPDX-License-Identifier: MIT */
/* How long an engine lives: until the last one that points into it lets go. */
#include "runtime/engine/engine_internal.h"

/* A use is counted in engines that are const for those who use them. */
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
