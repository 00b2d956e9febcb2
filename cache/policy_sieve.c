/* SPDX-License-Identifier: MIT */
/* SIEVE (Zhang et al., NSDI 2024): a queue in order of insertion, and a hand that walks from old to
 * new keys. A hit only marks the key. The hand unmarks marked keys and evicts the first unmarked
 * key. Survivors keep their places, so newer keys are examined sooner. O(1) amortised. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

typedef struct sieve_state {
    moe_key_list queue; /* the last inserted key in front */
    bool *visited;      /* [n_keys] */
    uint32_t hand;      /* the next key to examine; MOE_KEY_NONE: begin at the end */
    uint32_t n;
} sieve_state;

static void sieve_destroy(void *state)
{
    sieve_state *sieve = state;
    moe_key_list_release(&sieve->queue);
    free(sieve->visited);
    free(sieve);
}

static void *sieve_create(const moe_policy_config *config)
{
    sieve_state *sieve = moe_calloc(1, sizeof *sieve);
    if (sieve == NULL) {
        return NULL;
    }
    sieve->hand = MOE_KEY_NONE;
    sieve->visited = moe_calloc(config->n_keys, sizeof *sieve->visited);
    if (!moe_key_list_init(&sieve->queue, config->n_keys, 1) || sieve->visited == NULL) {
        sieve_destroy(sieve);
        return NULL;
    }
    return sieve;
}

static void sieve_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    sieve_state *sieve = state;
    (void)access;
    sieve->visited[key] = true;
}

static void sieve_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    sieve_state *sieve = state;
    (void)access;
    sieve->visited[key] = false;
    moe_key_list_push_front(&sieve->queue, 0, key);
    sieve->n++;
}

static void sieve_evict(void *state, uint32_t key)
{
    sieve_state *sieve = state;
    MOE_ASSERT(sieve->n > 0);
    if (sieve->hand == key) {
        sieve->hand = moe_key_list_before(&sieve->queue, key);
    }
    moe_key_list_remove(&sieve->queue, key);
    sieve->n--;
}

/* Goes round the queue at most twice: the first round removes the marks, so the second finds any
 * evictable key. Pinned keys are skipped and keep their marks. */
static uint32_t sieve_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                             void *context)
{
    sieve_state *sieve = state;
    (void)for_key;
    for (uint64_t i = 0; i < 2 * (uint64_t)sieve->n; i++) {
        if (sieve->hand == MOE_KEY_NONE) {
            sieve->hand = moe_key_list_last(&sieve->queue, 0);
        }
        uint32_t key = sieve->hand;
        MOE_ASSERT(key != MOE_KEY_NONE); /* n > 0, so the queue has a last key */
        if (evictable(context, key)) {
            if (!sieve->visited[key]) {
                return key;
            }
            sieve->visited[key] = false;
        }
        sieve->hand = moe_key_list_before(&sieve->queue, key);
    }
    return MOE_KEY_NONE;
}

const moe_policy moe_policy_sieve = {
    .abi = MOE_POLICY_ABI,
    .name = "sieve",
    .create = sieve_create,
    .destroy = sieve_destroy,
    .hit = sieve_hit,
    .insert = sieve_insert,
    .evict = sieve_evict,
    .victim = sieve_victim,
    .end_pass = moe_policy_ignore_pass,
};
