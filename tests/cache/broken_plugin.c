/* SPDX-License-Identifier: MIT */
/* A plug-in that is broken by what the build defines: its version, a member, the name of its entry
 * point, what that returns. */
#include <stdlib.h>

#include <moe/policy.h>

static void *create(const moe_policy_config *config)
{
    return malloc(config->n_keys);
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

static void end_pass(void *state, uint64_t pass)
{
    (void)state;
    (void)pass;
}

static const moe_policy policy = {
    .abi = PLUGIN_ABI,
    .name = "broken",
    .create = create,
    .destroy = free,
    .hit = note,
    .insert = note,
    .evict = evict,
    .victim = NULL,
    .end_pass = end_pass,
};

const moe_policy *PLUGIN_ENTRY(void);
const moe_policy *PLUGIN_ENTRY(void)
{
    return PLUGIN_RESULT;
}
