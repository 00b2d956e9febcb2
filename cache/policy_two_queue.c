/* SPDX-License-Identifier: MIT */
/* 2Q, the full version (Johnson, Shasha, VLDB 1994):
 *
 *     new --> [ in: a quarter of the slots, first in first out ]
 *                  | evicted
 *                  v
 *             [ out: names only, for half as many keys as slots ] --wanted again--> [ main: LRU ]
 *
 * A hit in `in` changes nothing: uses that follow each other closely count as one. O(1), plus the
 * pinned keys that are passed over. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

enum { IN, MAIN, OUT, N_QUEUES };

typedef struct two_queue_state {
    moe_key_list queues; /* the key that came last, or was used last, in front */
    uint32_t in_slots;
    uint32_t out_names;
} two_queue_state;

static void two_queue_destroy(void *state)
{
    two_queue_state *q = state;
    moe_key_list_release(&q->queues);
    free(q);
}

static void *two_queue_create(const moe_policy_config *config)
{
    two_queue_state *q = moe_calloc(1, sizeof *q);
    if (q == NULL) {
        return NULL;
    }
    q->in_slots = config->n_slots / 4;
    q->out_names = config->n_slots / 2;
    if (!moe_key_list_init(&q->queues, config->n_keys, N_QUEUES)) {
        two_queue_destroy(q);
        return NULL;
    }
    return q;
}

static void two_queue_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    two_queue_state *q = state;
    (void)access;
    if (moe_key_list_of(&q->queues, key) == MAIN) {
        moe_key_list_move_front(&q->queues, MAIN, key);
    }
}

static void two_queue_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    two_queue_state *q = state;
    (void)access;
    const bool wanted_again = moe_key_list_contains(&q->queues, key);
    if (wanted_again) {
        /* Otherwise the key would be resident. */
        MOE_ASSERT(moe_key_list_of(&q->queues, key) == OUT);
        moe_key_list_remove(&q->queues, key);
    }
    moe_key_list_push_front(&q->queues, wanted_again ? MAIN : IN, key);
    while (moe_key_list_length(&q->queues, OUT) > q->out_names) {
        moe_key_list_remove(&q->queues, moe_key_list_last(&q->queues, OUT));
    }
}

static void two_queue_evict(void *state, uint32_t key)
{
    two_queue_state *q = state;
    const bool came_in = moe_key_list_of(&q->queues, key) == IN;
    moe_key_list_remove(&q->queues, key);
    if (came_in) {
        /* Names beyond the limit are dropped when the next key has come. */
        moe_key_list_push_front(&q->queues, OUT, key);
    }
}

static uint32_t two_queue_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                                 void *context)
{
    two_queue_state *q = state;
    (void)for_key;
    const uint8_t first = moe_key_list_length(&q->queues, IN) > q->in_slots ? IN : MAIN;
    uint32_t key = moe_key_list_last_evictable(&q->queues, first, evictable, context);
    return key != MOE_KEY_NONE ? key
                               : moe_key_list_last_evictable(&q->queues, first == IN ? MAIN : IN,
                                                             evictable, context);
}

const moe_policy moe_policy_two_queue = {
    .abi = MOE_POLICY_ABI,
    .name = "2q",
    .create = two_queue_create,
    .destroy = two_queue_destroy,
    .hit = two_queue_hit,
    .insert = two_queue_insert,
    .evict = two_queue_evict,
    .victim = two_queue_victim,
    .end_pass = moe_policy_ignore_pass,
};
