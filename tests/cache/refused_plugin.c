/* SPDX-License-Identifier: MIT */
/* A policy whose every nomination is refused: it names a key that is never resident. */
#include <stdlib.h>

#include <moe/policy.h>

static void *create(const moe_policy_config *config)
{
    uint32_t *n_keys = malloc(sizeof *n_keys);
    if (n_keys != NULL) {
        *n_keys = config->n_keys;
    }
    return n_keys;
}

static void note(void *state, uint32_t key, const moe_policy_access *access)
{
    (void)state;
    (void)key;
    (void)access;
}

static void evict(void *state, uint32_t key)
{
    (void)state;
    (void)key;
}

static uint32_t victim(void *state, uint32_t for_key, moe_policy_evictable evictable, void *context)
{
    const uint32_t *n_keys = state;
    (void)for_key;
    (void)evictable;
    (void)context;
    return *n_keys;
}

static void end_pass(void *state, uint64_t pass)
{
    (void)state;
    (void)pass;
}

static const moe_policy policy = {.abi = MOE_POLICY_ABI,
                                  .name = "refused",
                                  .create = create,
                                  .destroy = free,
                                  .hit = note,
                                  .insert = note,
                                  .evict = evict,
                                  .victim = victim,
                                  .end_pass = end_pass};

const moe_policy *moe_policy_plugin(void)
{
    return &policy;
}
