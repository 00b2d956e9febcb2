/* SPDX-License-Identifier: MIT */
/* LRU-K with K = 2 (O'Neil, O'Neil, Weikum, SIGMOD 1993): evicts the key whose last use but one is
 * longest ago. Keys that were used only once go first, the least recently used of them at the
 * front. The times of a key's uses are kept for good, also after it has left: a model has few
 * experts. Uses shortly after each other count separately (the correlated reference period is 0).
 * O(log n). */
#include <stdlib.h>

#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"

typedef struct lru_k_state {
    moe_key_heap heap; /* by the last use but one, then by the last */
    /* [n_keys] time of the last use, counted in uses of any key; 0: never used */
    uint64_t *last;
    uint64_t *before; /* [n_keys] time of the use before that */
    uint64_t now;
} lru_k_state;

static void lru_k_destroy(void *state)
{
    lru_k_state *k = state;
    moe_key_heap_release(&k->heap);
    free(k->last);
    free(k->before);
    free(k);
}

static void *lru_k_create(const moe_policy_config *config)
{
    lru_k_state *k = moe_calloc(1, sizeof *k);
    if (k == NULL) {
        return NULL;
    }
    k->last = moe_calloc(config->n_keys, sizeof *k->last);
    k->before = moe_calloc(config->n_keys, sizeof *k->before);
    if (!moe_key_heap_init(&k->heap, config->n_keys) || k->last == NULL || k->before == NULL) {
        lru_k_destroy(k);
        return NULL;
    }
    return k;
}

static void lru_k_use(void *state, uint32_t key, const moe_policy_access *access)
{
    lru_k_state *k = state;
    if (access->n_rows > 0) { /* a prefetch is not a use */
        k->before[key] = k->last[key];
        k->last[key] = ++k->now;
    }
    moe_key_heap_set(&k->heap, key, (double)k->before[key], k->last[key]);
}

static void lru_k_evict(void *state, uint32_t key)
{
    lru_k_state *k = state;
    moe_key_heap_remove(&k->heap, key);
}

static uint32_t lru_k_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                             void *context)
{
    lru_k_state *k = state;
    (void)for_key;
    return moe_key_heap_first_evictable(&k->heap, evictable, context);
}

const moe_policy moe_policy_lru_k = {
    .abi = MOE_POLICY_ABI,
    .name = "lru-k",
    .create = lru_k_create,
    .destroy = lru_k_destroy,
    .hit = lru_k_use,
    .insert = lru_k_use,
    .evict = lru_k_evict,
    .victim = lru_k_victim,
    .end_pass = moe_policy_ignore_pass,
};
