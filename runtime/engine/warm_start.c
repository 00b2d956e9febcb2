/* SPDX-License-Identifier: MIT */
/* Chooses the experts that fill empty slots while nothing is requested: those that the sidecar has
 * seen used, the hottest first, in any layer (every pass goes through all of them). offload's
 * expert_store_warm.c fills the slots. If all experts fit a GPU, opening the engine loads them all.
 */
#include <stdlib.h>

#include <moe/calibrate.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/option_set.h"

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
                        moe_offload_name(o->lab->offload));
    }
    if (o->warm_start == MOE_SWITCH_ON && engine->hotness == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a warm start needs the experts' hotness, and there is no sidecar for this "
                        "model; make one: moe-offload calibrate -m %s -f TEXT",
                        o->model_path);
    }
    /* With costs in bytes, and with replayed routing, runs repeat to the expert; the time at which
     * reads end does not. */
    bool repeats = moe_speculation_by_bytes(o) || o->lab->route_trace != NULL;
    engine->warms = o->warm_start == MOE_SWITCH_ON || (o->warm_start == MOE_SWITCH_AUTO && keeps &&
                                                       engine->hotness != NULL && !repeats);
    return MOE_OK;
}

/* The keys of all experts, the hottest first; with known: only of those known to be used. */
static uint32_t *list_experts(const moe_engine *engine, bool known, uint32_t *n)
{
    const moe_model_config *c = &engine->config;
    size_t n_keys = (size_t)c->n_layer * c->n_expert;
    hot_expert *hot = moe_calloc(n_keys, sizeof *hot);
    uint32_t *keys = moe_calloc(n_keys, sizeof *keys);
    *n = 0;
    for (size_t key = 0; hot != NULL && keys != NULL && key < n_keys; key++) {
        float hotness = engine->hotness != NULL ? engine->hotness[key] : 0.0f;
        if (moe_layer_has_experts(c, (uint32_t)(key / c->n_expert)) && (hotness > 0.0f || !known)) {
            hot[(*n)++] = (hot_expert){hotness, (uint32_t)key};
        }
    }
    if (*n > 0) {
        qsort(hot, *n, sizeof *hot, compare_hotness);
    }
    for (uint32_t i = 0; i < *n; i++) {
        keys[i] = hot[i].key;
    }
    free(hot);
    return keys;
}

void moe_engine_warm(moe_engine *engine)
{
    if (engine == NULL || !engine->warms) {
        return;
    }
    uint32_t n;
    uint32_t *keys = list_experts(engine, true, &n);
    if (n > 0) {
        (void)moe_expert_store_warm(engine->runner.experts, keys, n);
    }
    free(keys);
}

/* Such a device replays whole tokens (recorded_pass.h), but only when no expert is missing. */
int moe_engine_fill(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    bool all_fit = engine->plan.expert_slots >= engine->plan.experts;
    if (!all_fit || engine->device->recording == NULL || engine->offload != MOE_OFFLOAD_AUTO ||
        o->warm_start == MOE_SWITCH_OFF) {
        return MOE_OK;
    }
    uint32_t n;
    uint32_t *keys = list_experts(engine, false, &n);
    int status =
        keys != NULL
            ? moe_expert_store_fill(engine->runner.experts, keys, n, o->progress, o->user, err)
            : moe_fail(err, MOE_ERR_MEMORY, "no memory for the order in which experts are read");
    free(keys);
    return status;
}
