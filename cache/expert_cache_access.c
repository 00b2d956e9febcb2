/* SPDX-License-Identifier: MIT */
/* The cache's mechanism: lookups, accesses, prefetches and pins decide which expert has which slot.
 * The policy nominates the victim. The cache checks each nomination: the key must be in the
 * policy's domain and not pinned.
 */
#include "cache/expert_cache_state.h"
#include "runtime/base/moe_assert.h"

/* ---- Lookup ---- */

uint32_t moe_expert_cache_find(const moe_expert_cache *cache, uint32_t key)
{
    return key < cache->n_keys ? cache->slot_of_key[key] : MOE_SLOT_NONE;
}

uint32_t moe_expert_cache_key_of(const moe_expert_cache *cache, uint32_t slot)
{
    return slot < cache->n_slots ? cache->key_of_slot[slot] : MOE_KEY_NONE;
}

/* ---- Changes ---- */

/* The access as a policy of this domain sees it. */
static moe_policy_access seen_access(const moe_cache_domain *domain,
                                     const moe_policy_access *access)
{
    moe_policy_access seen = *access;
    if (domain->single_layer) {
        seen.layer = 0;
    }
    return seen;
}

void moe_cache_make_absent(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t key)
{
    MOE_ASSERT(moe_cache_domain_of(cache, key) == domain);
    MOE_ASSERT(cache->slot_of_key[key] != MOE_SLOT_NONE && cache->pins[key] == 0);
    uint32_t slot = cache->slot_of_key[key];
    MOE_ASSERT(cache->key_of_slot[slot] == key && !cache->closed[slot]);
    MOE_ASSERT(domain->n_free < domain->n_open && cache->n_resident > 0);
    cache->policy->evict(domain->state, key - domain->first_key);
    cache->slot_of_key[key] = MOE_SLOT_NONE;
    cache->key_of_slot[slot] = MOE_KEY_NONE;
    cache->free_slots[domain->first_slot + domain->n_free++] = slot;
    cache->prefetched[key] = false;
    cache->n_changes++;
    cache->n_resident--;
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
}

/* The moe_policy_evictable of a domain. seen_key may be any number, since a plug-in may pass it. */
static bool evictable(void *context, uint32_t seen_key)
{
    const moe_cache_domain *domain = context;
    const moe_expert_cache *cache = domain->cache;
    uint64_t key = (uint64_t)seen_key + domain->first_key;
    if (key >= cache->n_keys || cache->slot_of_key[key] == MOE_SLOT_NONE || cache->pins[key] > 0) {
        return false;
    }
    return moe_cache_domain_of(cache, (uint32_t)key) == domain;
}

/* Returns the policy's choice, or the first evictable slot if the policy breaks its contract. */
static uint32_t choose_victim(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t for_key)
{
    uint32_t seen =
        cache->policy->victim(domain->state, for_key - domain->first_key, evictable, domain);
    if (seen != MOE_KEY_NONE && evictable(domain, seen)) {
        return seen + domain->first_key;
    }
    cache->stats.policy_faults++;
    for (uint32_t i = 0; i < domain->n_slots; i++) {
        uint32_t key = cache->key_of_slot[domain->first_slot + i];
        if (key != MOE_KEY_NONE && cache->pins[key] == 0) {
            return key;
        }
    }
    return MOE_KEY_NONE;
}

/* Gives the key a slot. Returns MOE_SLOT_NONE when all slots of its domain are pinned. */
static uint32_t give_slot(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t key,
                          const moe_policy_access *access, uint32_t *evicted)
{
    MOE_ASSERT(moe_cache_domain_of(cache, key) == domain);
    MOE_ASSERT(cache->slot_of_key[key] == MOE_SLOT_NONE && cache->pins[key] == 0);
    *evicted = MOE_KEY_NONE;
    if (domain->n_pinned == domain->n_open) {
        return MOE_SLOT_NONE;
    }
    if (domain->n_free == 0) {
        uint32_t victim = choose_victim(cache, domain, key);
        if (victim == MOE_KEY_NONE) {
            return MOE_SLOT_NONE;
        }
        MOE_ASSERT(moe_cache_domain_of(cache, victim) == domain && cache->pins[victim] == 0);
        cache->stats.evictions++;
        cache->stats.prefetch_wasted += cache->prefetched[victim];
        moe_cache_make_absent(cache, domain, victim);
        *evicted = victim;
    }
    uint32_t slot = cache->free_slots[domain->first_slot + --domain->n_free];
    MOE_ASSERT(slot >= domain->first_slot && slot - domain->first_slot < domain->n_slots);
    MOE_ASSERT(cache->key_of_slot[slot] == MOE_KEY_NONE && !cache->closed[slot]);
    cache->slot_of_key[key] = slot;
    cache->key_of_slot[slot] = key;
    cache->n_changes++;
    cache->n_resident++;
    moe_policy_access seen = seen_access(domain, access);
    cache->policy->insert(domain->state, key - domain->first_key, &seen);
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
    return slot;
}

uint32_t moe_expert_cache_access(moe_expert_cache *cache, uint32_t key,
                                 const moe_policy_access *access, bool *hit, uint32_t *evicted)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    *hit = false;
    *evicted = MOE_KEY_NONE;
    if (domain == NULL) {
        return MOE_SLOT_NONE;
    }
    uint32_t slot = cache->slot_of_key[key];
    if (slot != MOE_SLOT_NONE) {
        MOE_ASSERT(cache->key_of_slot[slot] == key);
        *hit = true;
        cache->stats.hits++;
        cache->stats.prefetch_used += cache->prefetched[key];
        cache->prefetched[key] = false;
        moe_policy_access seen = seen_access(domain, access);
        cache->policy->hit(domain->state, key - domain->first_key, &seen);
        return slot;
    }
    slot = give_slot(cache, domain, key, access, evicted);
    MOE_ASSERT(slot != MOE_SLOT_NONE || *evicted == MOE_KEY_NONE);
    cache->stats.misses += slot != MOE_SLOT_NONE;
    return slot;
}

uint32_t moe_expert_cache_prefetch(moe_expert_cache *cache, uint32_t key,
                                   const moe_policy_access *access, uint32_t *evicted)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    *evicted = MOE_KEY_NONE;
    if (domain == NULL || cache->slot_of_key[key] != MOE_SLOT_NONE) {
        return MOE_SLOT_NONE;
    }
    uint32_t slot = give_slot(cache, domain, key, access, evicted);
    if (slot != MOE_SLOT_NONE) {
        cache->prefetched[key] = true;
        cache->stats.prefetch_inserts++;
    }
    return slot;
}

void moe_expert_cache_drop(moe_expert_cache *cache, uint32_t key)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    if (domain == NULL || cache->slot_of_key[key] == MOE_SLOT_NONE) {
        return;
    }
    MOE_ASSERT(cache->pins[key] == 0 || domain->n_pinned > 0);
    domain->n_pinned -= cache->pins[key] > 0;
    cache->pins[key] = 0;
    cache->stats.prefetch_dropped += cache->prefetched[key];
    moe_cache_make_absent(cache, domain, key);
}

void moe_expert_cache_pin(moe_expert_cache *cache, uint32_t key)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    MOE_ASSERT(domain != NULL && cache->slot_of_key[key] != MOE_SLOT_NONE);
    MOE_ASSERT(cache->pins[key] < UINT32_MAX);
    domain->n_pinned += cache->pins[key]++ == 0;
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
}

void moe_expert_cache_unpin(moe_expert_cache *cache, uint32_t key)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    MOE_ASSERT(domain != NULL && cache->pins[key] > 0 && domain->n_pinned > 0);
    domain->n_pinned -= --cache->pins[key] == 0;
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
}

void moe_expert_cache_end_pass(moe_expert_cache *cache, uint64_t pass)
{
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        cache->policy->end_pass(cache->domains[d].state, pass);
    }
    MOE_ASSERT(moe_expert_cache_is_sane(cache));
}

/* ---- Telling ---- */

bool moe_expert_cache_has_room(const moe_expert_cache *cache, uint32_t key)
{
    const moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    return domain != NULL && domain->n_free > 0;
}

uint32_t moe_expert_cache_n_slots(const moe_expert_cache *cache)
{
    return cache->n_slots;
}

uint64_t moe_expert_cache_n_changes(const moe_expert_cache *cache)
{
    return cache->n_changes;
}

uint32_t moe_expert_cache_n_resident(const moe_expert_cache *cache)
{
    return cache->n_resident;
}

void moe_expert_cache_get_stats(const moe_expert_cache *cache, moe_expert_cache_stats *stats)
{
    *stats = cache->stats;
}
