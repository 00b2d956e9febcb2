/* SPDX-License-Identifier: MIT */
/* Evicts the least recently used key. O(1), plus the pinned keys that are passed over. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"

typedef struct lru_state {
    moe_key_list list; /* the last used in front */
} lru_state;

static void lru_destroy(void *state)
{
    lru_state *lru = state;
    moe_key_list_release(&lru->list);
    free(lru);
}

static void *lru_create(const moe_policy_config *config)
{
    lru_state *lru = moe_calloc(1, sizeof *lru);
    if (lru == NULL || !moe_key_list_init(&lru->list, config->n_keys, 1)) {
        free(lru);
        return NULL;
    }
    return lru;
}

static void lru_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    lru_state *lru = state;
    (void)access;
    moe_key_list_push_front(&lru->list, 0, key);
}

static void lru_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    lru_state *lru = state;
    moe_key_list_remove(&lru->list, key);
    lru_insert(state, key, access);
}

static void lru_evict(void *state, uint32_t key)
{
    lru_state *lru = state;
    moe_key_list_remove(&lru->list, key);
}

static uint32_t lru_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                           void *context)
{
    lru_state *lru = state;
    (void)for_key;
    return moe_key_list_last_evictable(&lru->list, 0, evictable, context);
}

const moe_policy moe_policy_lru = {
    .abi = MOE_POLICY_ABI,
    .name = "lru",
    .create = lru_create,
    .destroy = lru_destroy,
    .hit = lru_hit,
    .insert = lru_insert,
    .evict = lru_evict,
    .victim = lru_victim,
    .end_pass = moe_policy_ignore_pass,
};
