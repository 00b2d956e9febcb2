/* SPDX-License-Identifier: MIT */
#include "runtime/engine/byte_cost.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

struct moe_byte_cost {
    moe_expert_cache *cache;
    uint32_t n_expert;
    double resident_bytes;
    double expert_bytes;       /* of one, on average */
    double active_bytes;       /* one token's */
    uint64_t n_used, n_missed; /* distinct experts since the last take */
};

int moe_byte_cost_open(moe_byte_cost **out, const moe_tensor_map *map, uint32_t n_expert_used,
                       uint64_t n_slots, moe_error *err)
{
    *out = NULL;
    moe_byte_cost *cost = moe_calloc(1, sizeof *cost);
    if (cost == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for modelled costs");
    }
    uint32_t n_moe_layers = 0;
    for (uint32_t l = 0; l < map->n_layer; l++) {
        n_moe_layers += map->layers[l].experts != NULL;
    }
    cost->n_expert = map->n_expert;
    cost->resident_bytes = (double)map->resident_bytes;
    cost->expert_bytes = (double)map->expert_bytes / ((double)n_moe_layers * map->n_expert);
    cost->active_bytes = cost->resident_bytes + n_moe_layers * n_expert_used * cost->expert_bytes;
    const moe_policy *lru;
    void *plugin;
    uint32_t slots = (uint32_t)n_slots;
    moe_expert_cache_options options = {.n_layer = map->n_layer,
                                        .n_expert = map->n_expert,
                                        .n_expert_used = n_expert_used,
                                        .n_classes = 1,
                                        .slots_of_class = &slots};
    int status = moe_policy_load(&lru, &plugin, "lru", err);
    if (status == MOE_OK) {
        options.policy = lru;
        status = moe_expert_cache_create(&cost->cache, &options, err);
    }
    if (status != MOE_OK) {
        moe_byte_cost_close(&cost);
        return status;
    }
    *out = cost;
    return MOE_OK;
}

void moe_byte_cost_close(moe_byte_cost **cost)
{
    if (*cost != NULL) {
        moe_expert_cache_destroy(&(*cost)->cache);
        free(*cost);
        *cost = NULL;
    }
}

void moe_byte_cost_layer(moe_byte_cost *cost, const moe_layer_request *request)
{
    moe_policy_access access = {.pass = request->pass, .layer = request->layer, .n_rows = 1};
    for (uint32_t i = 0; i < request->n; i++) {
        bool hit;
        uint32_t evicted;
        uint32_t key = request->layer * cost->n_expert + request->experts[i];
        (void)moe_expert_cache_access(cost->cache, key, &access, &hit, &evicted);
        cost->n_missed += !hit;
    }
    cost->n_used += request->n;
}

double moe_byte_cost_take(moe_byte_cost *cost, uint32_t n_rows, double *fetch)
{
    *fetch = MOE_BYTE_COST_MISS * (double)cost->n_missed * cost->expert_bytes;
    double pass = cost->resident_bytes + (double)cost->n_used * cost->expert_bytes +
                  MOE_BYTE_COST_ROW * n_rows * cost->active_bytes;
    cost->n_used = cost->n_missed = 0;
    return pass + *fetch;
}

double moe_byte_cost_draft(const moe_byte_cost *cost, uint32_t n_rows)
{
    return cost->active_bytes + MOE_BYTE_COST_ROW * n_rows * cost->active_bytes;
}

double moe_byte_cost_miss(const moe_byte_cost *cost)
{
    return MOE_BYTE_COST_MISS * cost->expert_bytes;
}
