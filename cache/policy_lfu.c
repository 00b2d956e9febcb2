/* SPDX-License-Identifier: MIT */
/* Least frequently used, ties to the least recently used. Uses are counted for every expert, also
 * while it is not resident: a model has few of them, and a cache much smaller than the working set
 * would otherwise never learn which are worth keeping. O(log n). */
#include <stdlib.h>

#include "cache/key_heap.h"
#include "cache/policies.h"
#include "runtime/base/alloc.h"

typedef struct lfu_state {
    moe_key_heap heap;   /* of what is resident, by count */
    uint64_t *count;     /* [n_keys] passes that used it */
    uint64_t n_accesses; /* the clock of recency */
} lfu_state;

static void lfu_destroy(void *state)
{
    lfu_state *lfu = state;
    moe_key_heap_release(&lfu->heap);
    free(lfu->count);
    free(lfu);
}

static void *lfu_create(const moe_policy_config *config)
{
    lfu_state *lfu = moe_calloc(1, sizeof *lfu);
    if (lfu == NULL) {
        return NULL;
    }
    lfu->count = moe_calloc(config->n_keys, sizeof *lfu->count);
    if (!moe_key_heap_init(&lfu->heap, config->n_keys) || lfu->count == NULL) {
        lfu_destroy(lfu);
        return NULL;
    }
    return lfu;
}

/* A prefetch (no rows) is not a use, but it is recent. */
static void lfu_use(void *state, uint32_t key, const moe_policy_access *access)
{
    lfu_state *lfu = state;
    lfu->count[key] += access->n_rows > 0;
    moe_key_heap_set(&lfu->heap, key, (double)lfu->count[key], ++lfu->n_accesses);
}

static void lfu_evict(void *state, uint32_t key)
{
    lfu_state *lfu = state;
    moe_key_heap_remove(&lfu->heap, key);
}

static uint32_t lfu_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                           void *context)
{
    lfu_state *lfu = state;
    (void)for_key;
    return moe_key_heap_first_evictable(&lfu->heap, evictable, context);
}

static void lfu_end_pass(void *state, uint64_t pass)
{
    (void)state;
    (void)pass;
}

const moe_policy moe_policy_lfu = {
    .abi = MOE_POLICY_ABI,
    .name = "lfu",
    .create = lfu_create,
    .destroy = lfu_destroy,
    .hit = lfu_use,
    .insert = lfu_use,
    .evict = lfu_evict,
    .victim = lfu_victim,
    .end_pass = lfu_end_pass,
};
