/* SPDX-License-Identifier: MIT */
/* S3-FIFO (Yang et al., SOSP 2023): three queues.
 *
 *     new --> [ small: a tenth of the slots ] --used twice--> [ main ] --used again--> [ main ]
 *                        | not                                   | not
 *                        v                                       v
 *     remembered --> [ ghost: names only ]                    evicted
 *                        | wanted again: straight to main
 *
 * O(1) amortised. */
#include <stdlib.h>

#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

enum { SMALL, MAIN, GHOST, N_QUEUES };

#define MAX_USES       3
#define USES_FOR_MAIN  2
#define SMALL_FRACTION 10

typedef struct s3_fifo_state {
    moe_key_list queues;
    uint8_t *uses; /* [n_keys] uses since insertion, at most MAX_USES */
    uint32_t small_slots;
    uint32_t ghost_slots;
} s3_fifo_state;

static void s3_fifo_destroy(void *state)
{
    s3_fifo_state *s3 = state;
    moe_key_list_release(&s3->queues);
    free(s3->uses);
    free(s3);
}

static void *s3_fifo_create(const moe_policy_config *config)
{
    s3_fifo_state *s3 = moe_calloc(1, sizeof *s3);
    if (s3 == NULL) {
        return NULL;
    }
    uint32_t tenth = config->n_slots / SMALL_FRACTION;
    s3->small_slots = tenth > 0 ? tenth : 1;
    s3->ghost_slots = config->n_slots - tenth;
    s3->uses = moe_calloc(config->n_keys, sizeof *s3->uses);
    if (!moe_key_list_init(&s3->queues, config->n_keys, N_QUEUES) || s3->uses == NULL) {
        s3_fifo_destroy(s3);
        return NULL;
    }
    return s3;
}

static void s3_fifo_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    MOE_ASSERT(moe_key_list_contains(&((s3_fifo_state *)state)->queues, key));
    s3_fifo_state *s3 = state;
    (void)access;
    s3->uses[key] += s3->uses[key] < MAX_USES;
}

static void s3_fifo_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    s3_fifo_state *s3 = state;
    (void)access;
    bool remembered = moe_key_list_contains(&s3->queues, key);
    if (remembered) {
        /* Otherwise the key would be resident. */
        MOE_ASSERT(moe_key_list_of(&s3->queues, key) == GHOST);
        moe_key_list_remove(&s3->queues, key);
    }
    s3->uses[key] = 0;
    moe_key_list_push_front(&s3->queues, remembered ? MAIN : SMALL, key);
}

static void s3_fifo_evict(void *state, uint32_t key)
{
    s3_fifo_state *s3 = state;
    bool was_small = moe_key_list_of(&s3->queues, key) == SMALL;
    MOE_ASSERT(moe_key_list_of(&s3->queues, key) != GHOST);
    moe_key_list_remove(&s3->queues, key);
    if (was_small && s3->ghost_slots > 0) {
        if (moe_key_list_length(&s3->queues, GHOST) == s3->ghost_slots) {
            moe_key_list_remove(&s3->queues, moe_key_list_last(&s3->queues, GHOST));
        }
        moe_key_list_push_front(&s3->queues, GHOST, key);
    }
    MOE_ASSERT(moe_key_list_length(&s3->queues, GHOST) <= s3->ghost_slots);
}

/* Returns the first evictable key from the end of a queue. On the way, keys that were used often
 * enough move to the queue `main`; pinned keys stay in place. Returns NONE if the queue has no
 * victim. */
static uint32_t sift(s3_fifo_state *s3, uint8_t queue, moe_policy_evictable evictable,
                     void *context)
{
    uint8_t needed = queue == SMALL ? USES_FOR_MAIN : 1;
    uint32_t key = moe_key_list_last(&s3->queues, queue);
    while (key != MOE_KEY_NONE) {
        uint32_t before = moe_key_list_before(&s3->queues, key);
        if (evictable(context, key)) {
            if (s3->uses[key] < needed) {
                return key;
            }
            s3->uses[key] = queue == SMALL ? 0 : (uint8_t)(s3->uses[key] - 1);
            moe_key_list_move_front(&s3->queues, MAIN, key);
            before = before == MOE_KEY_NONE ? moe_key_list_last(&s3->queues, queue) : before;
        }
        key = before;
    }
    return MOE_KEY_NONE;
}

/* The victim comes from the queue `small` if it has at least a tenth of the slots, else from
 * `main`; if that queue has no victim, from the other queue. The search ends: `main` spares a key
 * at most MAX_USES times, and a key of `small` moves to `main` only once. */
static uint32_t s3_fifo_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                               void *context)
{
    s3_fifo_state *s3 = state;
    (void)for_key;
    uint8_t first = moe_key_list_length(&s3->queues, SMALL) >= s3->small_slots ? SMALL : MAIN;
    uint32_t key = sift(s3, first, evictable, context);
    if (key == MOE_KEY_NONE) {
        key = sift(s3, first == SMALL ? MAIN : SMALL, evictable, context);
    }
    if (key == MOE_KEY_NONE && first == MAIN) {
        key = sift(s3, MAIN, evictable, context);
    }
    return key;
}

const moe_policy moe_policy_s3_fifo = {
    .abi = MOE_POLICY_ABI,
    .name = "s3-fifo",
    .create = s3_fifo_create,
    .destroy = s3_fifo_destroy,
    .hit = s3_fifo_hit,
    .insert = s3_fifo_insert,
    .evict = s3_fifo_evict,
    .victim = s3_fifo_victim,
    .end_pass = moe_policy_ignore_pass,
};
