/* SPDX-License-Identifier: MIT */
/* Checks the state that an expert cache must have between two calls. Assertions check a domain's
 * counts after every change, and the whole cache after large changes and at the end of a pass. */
#include "cache/expert_cache_state.h"

bool moe_cache_domain_counts_are_sane(const moe_expert_cache *cache, const moe_cache_domain *domain)
{
    return domain->n_open <= domain->n_slots && domain->n_free <= domain->n_open &&
           domain->n_pinned <= domain->n_open - domain->n_free &&
           cache->n_resident <= cache->n_slots && cache->n_changes >= cache->n_resident;
}

/* Turns a slot's number into a random-looking one (splitmix64), so that the sums over two
 * different sets of slots differ. */
static uint64_t scatter(uint32_t slot)
{
    uint64_t z = slot + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Checks a domain: every slot is resident, closed or on the free stack, and the counts agree with
 * this. */
static bool slots_are_sane(const moe_expert_cache *cache, const moe_cache_domain *domain)
{
    uint32_t n_empty = 0;
    uint32_t n_pinned = 0;
    uint32_t n_closed = 0;
    uint64_t empty = 0;
    for (uint32_t i = 0; i < domain->n_slots; i++) {
        uint32_t slot = domain->first_slot + i;
        uint32_t key = cache->key_of_slot[slot];
        n_closed += cache->closed[slot];
        if (key == MOE_KEY_NONE) {
            n_empty += !cache->closed[slot];
            empty += cache->closed[slot] ? 0 : scatter(slot);
            continue;
        }
        if (cache->closed[slot] || key >= cache->n_keys || cache->slot_of_key[key] != slot ||
            moe_cache_domain_of(cache, key) != domain) {
            return false;
        }
        n_pinned += cache->pins[key] > 0;
    }
    if (n_empty != domain->n_free || n_pinned != domain->n_pinned ||
        n_closed != domain->n_slots - domain->n_open) {
        return false;
    }
    for (uint32_t i = 0; i < domain->n_free; i++) {
        empty -= scatter(cache->free_slots[domain->first_slot + i]);
    }
    return empty == 0;
}

static bool domain_is_sane(const moe_expert_cache *cache, uint32_t d)
{
    const moe_cache_domain *domain = &cache->domains[d];
    uint32_t n_layers = 0;
    uint32_t first_layer = 0;
    for (uint32_t l = cache->n_layer; l-- > 0;) {
        if (cache->domain_of_layer[l] == d) {
            n_layers++;
            first_layer = l;
        }
    }
    uint32_t first_key = domain->single_layer ? first_layer * cache->n_expert : 0;
    /* Domains follow each other, in the order of their classes. */
    uint32_t least_slot = 0;
    uint32_t least_class = 0;
    if (d > 0) {
        const moe_cache_domain *before = &cache->domains[d - 1];
        least_slot = before->first_slot + before->n_slots;
        least_class = before->class_id;
    }
    return domain->cache == cache && domain->state != NULL && domain->n_layers == n_layers &&
           n_layers > 0 && (!domain->single_layer || n_layers == 1) &&
           domain->first_key == first_key && domain->class_id >= least_class &&
           domain->first_slot >= least_slot && domain->first_slot <= cache->n_slots &&
           domain->n_slots <= cache->n_slots - domain->first_slot &&
           moe_cache_domain_counts_are_sane(cache, domain) && slots_are_sane(cache, domain);
}

/* Checks the links between the tiers, and that the lists of spare experts contain exactly the
 * spare experts. */
static bool stack_is_sane(const moe_expert_cache *cache)
{
    uint64_t n_spare = 0;
    for (uint32_t key = 0; key < cache->n_keys && cache->above != NULL; key++) {
        bool is = moe_cache_is_spare(cache, key);
        if (moe_key_list_contains(&cache->spare, key) != is) {
            return false;
        }
        n_spare += is;
    }
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        n_spare -= cache->domains[d].n_spare;
    }
    return n_spare == 0 && (cache->above == NULL || cache->above->below == cache) &&
           (cache->below == NULL || cache->below->above == cache);
}

/* Checks the keys' slots, and the counts over all keys. */
static bool keys_are_sane(const moe_expert_cache *cache)
{
    uint32_t n_resident = 0;
    uint64_t n_prefetched = 0;
    for (uint32_t key = 0; key < cache->n_keys; key++) {
        uint32_t slot = cache->slot_of_key[key];
        if (slot == MOE_SLOT_NONE) {
            if (cache->pins[key] > 0 || cache->prefetched[key]) {
                return false;
            }
            continue;
        }
        if (slot >= cache->n_slots || cache->key_of_slot[slot] != key) {
            return false;
        }
        n_resident++;
        n_prefetched += cache->prefetched[key];
    }
    const moe_expert_cache_stats *s = &cache->stats;
    return n_resident == cache->n_resident &&
           s->prefetch_inserts ==
               s->prefetch_used + s->prefetch_wasted + s->prefetch_dropped + n_prefetched &&
           s->prefetch_used <= s->hits &&
           s->evictions + n_resident <= s->misses + s->prefetch_inserts;
}

/* Slots of a class without layers are in no domain, and are never used. */
static bool slots_without_domain_are_sane(const moe_expert_cache *cache)
{
    uint32_t n_closed = 0;
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        n_closed += cache->domains[d].n_slots - cache->domains[d].n_open;
    }
    for (uint32_t slot = 0; slot < cache->n_slots; slot++) {
        n_closed -= cache->closed[slot];
    }
    return n_closed == 0;
}

bool moe_expert_cache_is_sane(const moe_expert_cache *cache)
{
    if (cache->policy == NULL || cache->n_domains == 0 || cache->n_expert == 0 ||
        cache->n_keys != (uint64_t)cache->n_layer * cache->n_expert) {
        return false;
    }
    for (uint32_t l = 0; l < cache->n_layer; l++) {
        uint32_t d = cache->domain_of_layer[l];
        if (d >= cache->n_domains && d != MOE_DOMAIN_NONE) {
            return false;
        }
    }
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        if (!domain_is_sane(cache, d)) {
            return false;
        }
    }
    return keys_are_sane(cache) && stack_is_sane(cache) && slots_without_domain_are_sane(cache);
}
