/* SPDX-License-Identifier: MIT */
/* Passes forecasts to the policy: each domain's object gets those of its own keys. */
#include <stdlib.h>

#include "cache/expert_cache_state.h"
#include "runtime/base/alloc.h"

bool moe_policy_looks_ahead(const moe_policy *policy)
{
    return policy->abi >= 2 && policy->lookahead != NULL;
}

static bool is_of(const moe_expert_cache *cache, uint32_t domain, uint32_t key)
{
    return key < cache->n_keys && cache->domain_of_layer[key / cache->n_expert] == domain;
}

/* Whether the cache has one domain and all forecasts are of its keys, so that they can be passed on
 * unchanged. */
static bool all_are_keys(const moe_expert_cache *cache, const moe_policy_forecast *uses, size_t n)
{
    bool all = cache->domains[0].first_key == 0;
    for (size_t i = 0; i < n; i++) {
        all &= uses[i].key < cache->n_keys;
    }
    return all;
}

void moe_expert_cache_lookahead(moe_expert_cache *cache, uint64_t first_pass,
                                const moe_policy_forecast *uses, size_t n)
{
    if (!moe_policy_looks_ahead(cache->policy)) {
        return;
    }
    if (cache->n_domains == 1 && all_are_keys(cache, uses, n)) {
        cache->policy->lookahead(cache->domains[0].state, first_pass, uses, n);
        return;
    }
    moe_policy_forecast *own = moe_calloc(n > 0 ? n : 1, sizeof *own);
    for (uint32_t d = 0; own != NULL && d < cache->n_domains; d++) {
        size_t n_own = 0;
        for (size_t i = 0; i < n; i++) {
            if (is_of(cache, d, uses[i].key)) {
                own[n_own] = uses[i];
                own[n_own++].key -= cache->domains[d].first_key;
            }
        }
        cache->policy->lookahead(cache->domains[d].state, first_pass, own, n_own);
    }
    free(own);
}
