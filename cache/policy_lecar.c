/* SPDX-License-Identifier: MIT */
/* LeCaR (Vietri and others, HotStorage 2018): for each eviction the victim of LRU or that of LFU,
 * drawn by two weights that are learned. A key that leaves goes to the history of the policy that
 * chose it. If it is wanted while it is there, that policy was wrong, and the other's weight is
 * multiplied by e^(rate * d^age), where age counts the accesses since the key left.
 *
 *    resident --chosen by LRU--> [ gone by LRU ]      each history as long as half of the slots;
 *             --chosen by LFU--> [ gone by LFU ]      both policies agree: no history
 *
 * The constants are those of the authors' program: rate .45, and d such that d^slots is .005.
 * Neither weight falls below .01, so that none is given up for good. (Its histories are as long as
 * all slots each.) A key's uses count on while it is in a history. Draws come from the seed.
 * O(log n). */
#include <math.h>
#include <stdlib.h>

#include "cache/key_heap.h"
#include "cache/key_list.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/random.h"

#define LEARNING_RATE 0.45
#define LEFT_AFTER    0.005 /* of a regret, after as many accesses as there are slots */
#define LEAST_WEIGHT  0.01

enum { RESIDENT, GONE_BY_LRU, GONE_BY_LFU, N_LISTS };

typedef struct lecar_state {
    moe_key_list lists;  /* the last used, or the last gone, in front */
    moe_key_heap by_use; /* of the residents: the least used first */
    uint64_t *n_uses;    /* [n_keys] since the key was last in no list */
    uint64_t *gone;      /* [n_keys] when a key in a history left */
    uint64_t now;        /* accesses */
    uint32_t n_history;
    double discount; /* d */
    double lru;      /* the weight of LRU; that of LFU is 1 - lru */
    moe_random random;
    uint32_t victim; /* the last nomination, */
    uint32_t list;   /* ... and the history that it goes to; RESIDENT: none */
} lecar_state;

static void lecar_destroy(void *state)
{
    lecar_state *l = state;
    moe_key_list_release(&l->lists);
    moe_key_heap_release(&l->by_use);
    free(l->n_uses);
    free(l->gone);
    free(l);
}

static void *lecar_create(const moe_policy_config *config)
{
    lecar_state *l = moe_calloc(1, sizeof *l);
    if (l == NULL) {
        return NULL;
    }
    l->n_history = config->n_slots / 2 > 0 ? config->n_slots / 2 : 1;
    l->discount = pow(LEFT_AFTER, 1.0 / config->n_slots);
    l->lru = 0.5;
    moe_random_seed(&l->random, config->seed);
    l->victim = MOE_KEY_NONE;
    l->n_uses = moe_calloc(config->n_keys, sizeof *l->n_uses);
    l->gone = moe_calloc(config->n_keys, sizeof *l->gone);
    if (!moe_key_list_init(&l->lists, config->n_keys, N_LISTS) ||
        !moe_key_heap_init(&l->by_use, config->n_keys) || l->n_uses == NULL || l->gone == NULL) {
        lecar_destroy(l);
        return NULL;
    }
    return l;
}

/* If the key is in a history: learns from it, and takes it out. */
static void learn(lecar_state *l, uint32_t key)
{
    if (!moe_key_list_contains(&l->lists, key) || moe_key_list_of(&l->lists, key) == RESIDENT) {
        return;
    }
    const double more = exp(LEARNING_RATE * pow(l->discount, (double)(l->now - l->gone[key])));
    double lru = l->lru, lfu = 1 - l->lru;
    *(moe_key_list_of(&l->lists, key) == GONE_BY_LRU ? &lfu : &lru) *= more;
    lru /= lru + lfu;
    l->lru = fmin(fmax(lru, LEAST_WEIGHT), 1 - LEAST_WEIGHT);
    moe_key_list_remove(&l->lists, key);
}

static void note_use(lecar_state *l, uint32_t key, const moe_policy_access *access)
{
    l->now++;
    l->n_uses[key] += access->n_rows > 0; /* a prefetch is not a use */
    moe_key_heap_set(&l->by_use, key, (double)l->n_uses[key], l->now);
}

static void lecar_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    lecar_state *l = state;
    moe_key_list_move_front(&l->lists, RESIDENT, key);
    note_use(l, key, access);
}

static void lecar_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    lecar_state *l = state;
    learn(l, key);
    moe_key_list_push_front(&l->lists, RESIDENT, key);
    note_use(l, key, access);
}

static void forget_last(lecar_state *l, uint32_t list)
{
    const uint32_t key = moe_key_list_last(&l->lists, list);
    moe_key_list_remove(&l->lists, key);
    l->n_uses[key] = 0;
}

static void lecar_evict(void *state, uint32_t key)
{
    lecar_state *l = state;
    const uint32_t list = key == l->victim ? l->list : RESIDENT;
    moe_key_list_remove(&l->lists, key);
    moe_key_heap_remove(&l->by_use, key);
    l->victim = MOE_KEY_NONE;
    if (list == RESIDENT) {
        l->n_uses[key] = 0;
        return;
    }
    if (moe_key_list_length(&l->lists, list) == l->n_history) {
        forget_last(l, list);
    }
    moe_key_list_push_front(&l->lists, list, key);
    l->gone[key] = l->now;
}

static uint32_t lecar_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                             void *context)
{
    lecar_state *l = state;
    learn(l, for_key);
    const uint32_t lru = moe_key_list_last_evictable(&l->lists, RESIDENT, evictable, context);
    const uint32_t lfu = moe_key_heap_first_evictable(&l->by_use, evictable, context);
    const bool is_lru = moe_random_uniform(&l->random) < l->lru;
    l->victim = is_lru ? lru : lfu;
    l->list = is_lru ? GONE_BY_LRU : GONE_BY_LFU;
    l->list = lru == lfu ? RESIDENT : l->list;
    return l->victim;
}

const moe_policy moe_policy_lecar = {
    .abi = MOE_POLICY_ABI,
    .name = "lecar",
    .create = lecar_create,
    .destroy = lecar_destroy,
    .hit = lecar_hit,
    .insert = lecar_insert,
    .evict = lecar_evict,
    .victim = lecar_victim,
    .end_pass = moe_policy_ignore_pass,
};
