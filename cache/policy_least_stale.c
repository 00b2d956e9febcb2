/* SPDX-License-Identifier: MIT */
/* Layers come in a circle: the experts of the layer just passed are needed again only a whole pass
 * later. The victim therefore comes from the current layer, else from the one before it, and so on
 * backwards round the circle; within a layer it is the least recently used. This keeps the experts
 * that are needed next, which LRU evicts when the cache is smaller than a pass. O(layers). */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"

typedef struct least_stale_state {
    moe_key_list lists; /* a list for each layer, the last used in front */
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t layer; /* the layer at work */
} least_stale_state;

static void least_stale_destroy(void *state)
{
    least_stale_state *stale = state;
    moe_key_list_release(&stale->lists);
    free(stale);
}

static void *least_stale_create(const moe_policy_config *config)
{
    least_stale_state *stale = moe_calloc(1, sizeof *stale);
    if (stale == NULL || !moe_key_list_init(&stale->lists, config->n_keys, config->n_layer)) {
        free(stale);
        return NULL;
    }
    stale->n_layer = config->n_layer;
    stale->n_expert = config->n_expert;
    return stale;
}

/* A prefetch is for a coming layer and does not change the current layer. */
static void least_stale_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    least_stale_state *stale = state;
    if (access->n_rows > 0) {
        stale->layer = key / stale->n_expert;
    }
    moe_key_list_push_front(&stale->lists, key / stale->n_expert, key);
}

static void least_stale_evict(void *state, uint32_t key)
{
    least_stale_state *stale = state;
    moe_key_list_remove(&stale->lists, key);
}

static void least_stale_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    least_stale_evict(state, key);
    least_stale_insert(state, key, access);
}

static uint32_t least_stale_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                                   void *context)
{
    least_stale_state *stale = state;
    uint32_t victim = MOE_KEY_NONE;
    (void)for_key;
    for (uint32_t i = 0; i < stale->n_layer && victim == MOE_KEY_NONE; i++) {
        uint32_t layer = (stale->layer + stale->n_layer - i) % stale->n_layer;
        victim = moe_key_list_last_evictable(&stale->lists, layer, evictable, context);
    }
    return victim;
}

const moe_policy moe_policy_least_stale = {
    .abi = MOE_POLICY_ABI,
    .name = "least-stale",
    .create = least_stale_create,
    .destroy = least_stale_destroy,
    .hit = least_stale_hit,
    .insert = least_stale_insert,
    .evict = least_stale_evict,
    .victim = least_stale_victim,
    .end_pass = moe_policy_ignore_pass,
};
