/* SPDX-License-Identifier: MIT */
/* Evicts any resident expert, chosen by a seeded generator: a baseline that knows nothing. Expected
 * O(1) while few keys are pinned. */
#include <stdlib.h>

#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

typedef struct random_state {
    uint64_t generator;
    uint32_t n;
    uint32_t *keys;     /* [n_keys] the resident ones, in no order */
    uint32_t *position; /* [n_keys] a resident key's place in keys */
} random_state;

static void random_destroy(void *state)
{
    random_state *random = state;
    free(random->keys);
    free(random->position);
    free(random);
}

static void *random_create(const moe_policy_config *config)
{
    random_state *random = moe_calloc(1, sizeof *random);
    if (random == NULL) {
        return NULL;
    }
    random->generator = config->seed;
    random->keys = moe_calloc(config->n_keys, sizeof *random->keys);
    random->position = moe_calloc(config->n_keys, sizeof *random->position);
    if (random->keys == NULL || random->position == NULL) {
        random_destroy(random);
        return NULL;
    }
    return random;
}

static void random_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    (void)state;
    (void)key;
    (void)access;
}

static void random_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    random_state *random = state;
    (void)access;
    random->position[key] = random->n;
    random->keys[random->n++] = key;
}

static void random_evict(void *state, uint32_t key)
{
    random_state *random = state;
    MOE_ASSERT(random->n > 0 && random->position[key] < random->n);
    MOE_ASSERT(random->keys[random->position[key]] == key);
    uint32_t last = random->keys[--random->n];
    random->keys[random->position[key]] = last;
    random->position[last] = random->position[key];
}

/* splitmix64 */
static uint64_t next_random(random_state *random)
{
    uint64_t z = random->generator += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                              void *context)
{
    random_state *random = state;
    (void)for_key;
    if (random->n == 0) {
        return MOE_KEY_NONE;
    }
    uint32_t start = (uint32_t)(next_random(random) % random->n);
    for (uint32_t i = 0; i < random->n; i++) {
        uint32_t key = random->keys[(start + i) % random->n];
        if (evictable(context, key)) {
            return key;
        }
    }
    return MOE_KEY_NONE;
}

const moe_policy moe_policy_random = {
    .abi = MOE_POLICY_ABI,
    .name = "random",
    .create = random_create,
    .destroy = random_destroy,
    .hit = random_hit,
    .insert = random_insert,
    .evict = random_evict,
    .victim = random_victim,
    .end_pass = moe_policy_ignore_pass,
};
