/* SPDX-License-Identifier: MIT */
/* Which experts fill empty slots while nothing is asked for: those that the sidecar has seen used,
 * the hottest first, whatever their layer (every pass goes through all of them). How: offload's
 * expert_store_warm.c. */
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

typedef struct hot_expert {
    float hotness;
    uint32_t key;
} hot_expert;

static int compare_hotness(const void *a, const void *b)
{
    const hot_expert *x = a;
    const hot_expert *y = b;
    int order = (x->hotness < y->hotness) - (x->hotness > y->hotness);
    return order != 0 ? order : (x->key > y->key) - (x->key < y->key);
}

int moe_engine_open_warm_start(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    bool keeps = engine->offload == MOE_OFFLOAD_AUTO;
    if (o->warm_start == MOE_SWITCH_ON && !keeps) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "offload mode %s keeps no expert that is not in use, so a warm start "
                        "cannot act",
                        o->offload);
    }
    if (o->warm_start == MOE_SWITCH_ON && engine->hotness == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a warm start needs the experts' hotness, and there is no sidecar for this "
                        "model; make one: moe-offload calibrate -m %s -f TEXT",
                        o->model_path);
    }
    /* By bytes, and replayed, runs repeat themselves to the expert; when reads end they do not. */
    bool repeats = moe_speculation_by_bytes(o) || o->route_trace != NULL;
    engine->warms = o->warm_start == MOE_SWITCH_ON || (o->warm_start == MOE_SWITCH_AUTO && keeps &&
                                                       engine->hotness != NULL && !repeats);
    return MOE_OK;
}

void moe_engine_warm(moe_engine *engine)
{
    if (!engine->warms) {
        return;
    }
    size_t n_keys = (size_t)engine->config.n_layer * engine->config.n_expert;
    hot_expert *hot = moe_calloc(n_keys, sizeof *hot);
    uint32_t *keys = moe_calloc(n_keys, sizeof *keys);
    uint32_t n = 0;
    for (size_t key = 0; hot != NULL && keys != NULL && key < n_keys; key++) {
        if (engine->hotness[key] > 0.0f) {
            hot[n++] = (hot_expert){engine->hotness[key], (uint32_t)key};
        }
    }
    if (n > 0) {
        qsort(hot, n, sizeof *hot, compare_hotness);
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = hot[i].key;
        }
        (void)moe_expert_store_warm(engine->experts, keys, n);
    }
    free(hot);
    free(keys);
}
