/* SPDX-License-Identifier: MIT */
/* Lists the slots that a domain would give to its next keys. This is for passes that a device
 * runs by itself: it gives slots to experts without asking the cache. */
#include "cache/expert_cache_state.h"
#include "runtime/base/moe_assert.h"

/* The moe_policy_evictable of a nomination: leaves out keys that have been nominated already. */
static bool may_be_named(void *context, uint32_t seen_key)
{
    const moe_cache_domain *domain = context;
    const moe_expert_cache *cache = domain->cache;
    uint64_t key = (uint64_t)seen_key + domain->first_key;
    return key < cache->n_keys && cache->slot_of_key[key] != MOE_SLOT_NONE &&
           cache->pins[key] == 0 && !cache->named[key] &&
           moe_cache_domain_of(cache, (uint32_t)key) == domain;
}

bool moe_expert_cache_is_pinned(const moe_expert_cache *cache, uint32_t key)
{
    return key < cache->n_keys && cache->pins[key] > 0;
}

uint32_t moe_expert_cache_domain_of(const moe_expert_cache *cache, uint32_t layer)
{
    return layer < cache->n_layer && cache->domain_of_layer[layer] != MOE_DOMAIN_NONE
               ? cache->domain_of_layer[layer]
               : MOE_SLOT_NONE;
}

uint32_t moe_expert_cache_nominate(moe_expert_cache *cache, uint32_t layer, uint32_t n,
                                   uint32_t *slots)
{
    uint32_t d = moe_expert_cache_domain_of(cache, layer);
    uint32_t n_named = 0;
    if (d == MOE_SLOT_NONE) {
        return 0;
    }
    MOE_ASSERT(cache->above == NULL); /* with a tier above, spare experts would have to go first */
    moe_cache_domain *domain = &cache->domains[d];
    while (n_named < n && n_named < domain->n_free) {
        slots[n_named] = cache->free_slots[domain->first_slot + domain->n_free - 1 - n_named];
        n_named++;
    }
    uint32_t n_empty = n_named;
    for (bool more = true; more && n_named < n;) {
        uint32_t for_key = layer * cache->n_expert - domain->first_key;
        uint32_t seen = cache->policy->victim(domain->state, for_key, may_be_named, domain);
        more = seen != MOE_KEY_NONE && may_be_named(domain, seen);
        if (more) {
            uint32_t key = seen + domain->first_key;
            cache->named[key] = true;
            slots[n_named++] = cache->slot_of_key[key];
        }
    }
    for (uint32_t i = n_empty; i < n_named; i++) {
        cache->named[cache->key_of_slot[slots[i]]] = false;
    }
    return n_named;
}
