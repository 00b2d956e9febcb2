/* SPDX-License-Identifier: MIT */
/* Orders the experts by the sidecar's hotness, over all layers together: every pass goes through
 * all of them. offload's expert_store_fill.c fills the slots. */
#include "runtime/sidecar/warm_start.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

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

/* The keys of all experts, the hottest first; with used_only, only experts that the sidecar has
 * seen used. */
static uint32_t *list_experts(const moe_model_config *c, const float *hotness, bool used_only,
                              uint32_t *n)
{
    size_t n_keys = (size_t)c->n_layer * c->n_expert;
    hot_expert *hot = moe_calloc(n_keys, sizeof *hot);
    uint32_t *keys = moe_calloc(n_keys, sizeof *keys);
    *n = 0;
    for (size_t key = 0; hot != NULL && keys != NULL && key < n_keys; key++) {
        float share = hotness != NULL ? hotness[key] : 0.0f;
        if (moe_layer_has_experts(c, (uint32_t)(key / c->n_expert)) &&
            (share > 0.0f || !used_only)) {
            hot[(*n)++] = (hot_expert){share, (uint32_t)key};
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

void moe_warm_start(const moe_runner *runner, const float *hotness)
{
    uint32_t n;
    uint32_t *keys = list_experts(runner->config, hotness, hotness != NULL, &n);
    if (n > 0) {
        (void)moe_expert_store_warm(runner->experts, keys, n);
    }
    free(keys);
}

int moe_warm_start_all(const moe_runner *runner, const float *hotness, moe_progress_fn progress,
                       void *user, moe_error *err)
{
    uint32_t n;
    uint32_t *keys = list_experts(runner->config, hotness, false, &n);
    int status = keys != NULL ? moe_expert_store_fill(runner->experts, keys, n, progress, user, err)
                              : moe_fail(err, MOE_ERR_MEMORY,
                                         "no memory for the order in which experts are read");
    free(keys);
    return status;
}
