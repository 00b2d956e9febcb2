/* SPDX-License-Identifier: MIT */
/* Takes slots out of the cache and gives them back while the cache is in use, because something
 * else needs their memory. A closed slot holds no key and is not on its domain's free stack, so no
 * key can be given it. */
#include "cache/expert_cache_state.h"
#include "runtime/base/moe_assert.h"

bool moe_expert_cache_domain(const moe_expert_cache *cache, uint32_t d, moe_cache_domain_size *size)
{
    if (d >= cache->n_domains) {
        return false;
    }
    const moe_cache_domain *domain = &cache->domains[d];
    *size = (moe_cache_domain_size){domain->class_id, domain->n_slots, domain->n_open,
                                    domain->n_pinned};
    return true;
}

/* Runs of one domain. */
typedef struct run_search {
    const moe_expert_cache *cache;
    const moe_cache_domain *domain;
    uint32_t n_run;
} run_search;

static uint32_t run_of_slot(const run_search *s, uint32_t slot)
{
    MOE_ASSERT(slot >= s->domain->first_slot);
    uint32_t at = slot - s->domain->first_slot;
    return s->domain->first_slot + at / s->n_run * s->n_run;
}

/* True when the run lies in the domain and has no closed or pinned slot; if `empty`, also no
 * resident expert. */
static bool may_close(const run_search *s, uint32_t first, bool empty)
{
    const moe_expert_cache *cache = s->cache;
    if (first + s->n_run > s->domain->first_slot + s->domain->n_slots) {
        return false;
    }
    for (uint32_t slot = first; slot < first + s->n_run; slot++) {
        uint32_t key = cache->key_of_slot[slot];
        if (cache->closed[slot] || (key != MOE_KEY_NONE && (empty || cache->pins[key] > 0))) {
            return false;
        }
    }
    return true;
}

/* The last run for which may_close() holds, or MOE_SLOT_NONE. */
static uint32_t find_run(const run_search *s, bool empty)
{
    for (uint32_t n = s->domain->n_slots / s->n_run; n > 0; n--) {
        uint32_t first = s->domain->first_slot + (n - 1) * s->n_run;
        if (may_close(s, first, empty)) {
            return first;
        }
    }
    return MOE_SLOT_NONE;
}

/* The moe_policy_evictable of the search. */
static bool in_closable_run(void *context, uint32_t seen_key)
{
    const run_search *s = context;
    uint64_t key = (uint64_t)seen_key + s->domain->first_key;
    if (key >= s->cache->n_keys || s->cache->slot_of_key[key] == MOE_SLOT_NONE) {
        return false;
    }
    uint32_t slot = s->cache->slot_of_key[key];
    return slot >= s->domain->first_slot && slot < s->domain->first_slot + s->domain->n_slots &&
           may_close(s, run_of_slot(s, slot), false);
}

/* The key that the next pass begins with: the first expert of the domain's first layer, as its
 * policy sees it. */
static uint32_t first_seen_key(const moe_expert_cache *cache, const moe_cache_domain *domain)
{
    for (uint32_t l = 0; l < cache->n_layer && !domain->single_layer; l++) {
        if (cache->domain_of_layer[l] == (uint32_t)(domain - cache->domains)) {
            return l * cache->n_expert - domain->first_key;
        }
    }
    return 0;
}

/* The run of the expert that the policy nominates. */
static uint32_t coldest_run(moe_expert_cache *cache, const moe_cache_domain *domain, run_search *s)
{
    if (find_run(s, false) == MOE_SLOT_NONE) {
        return MOE_SLOT_NONE;
    }
    uint32_t seen =
        cache->policy->victim(domain->state, first_seen_key(cache, domain), in_closable_run, s);
    if (seen != MOE_KEY_NONE && in_closable_run(s, seen)) {
        return run_of_slot(s, cache->slot_of_key[seen + domain->first_key]);
    }
    cache->stats.policy_faults++;
    return find_run(s, false);
}

/* Takes a free slot off its domain's stack. */
static void leave_stack(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t slot)
{
    uint32_t *stack = &cache->free_slots[domain->first_slot];
    for (uint32_t i = 0; i < domain->n_free; i++) {
        if (stack[i] == slot) {
            stack[i] = stack[--domain->n_free];
            return;
        }
    }
    MOE_ASSERT(!"the slot is on the stack");
}

bool moe_expert_cache_close(moe_expert_cache *cache, uint32_t d, uint32_t n_run, uint32_t *first)
{
    MOE_ASSERT(d < cache->n_domains && n_run > 0);
    moe_cache_domain *domain = &cache->domains[d];
    run_search s = {.cache = cache, .domain = domain, .n_run = n_run};
    *first = domain->n_free >= n_run ? find_run(&s, true) : MOE_SLOT_NONE;
    if (*first == MOE_SLOT_NONE) {
        *first = coldest_run(cache, domain, &s);
    }
    if (*first == MOE_SLOT_NONE) {
        return false;
    }
    for (uint32_t slot = *first; slot < *first + n_run; slot++) {
        uint32_t key = cache->key_of_slot[slot];
        if (key != MOE_KEY_NONE) {
            cache->stats.evictions++;
            cache->stats.prefetch_wasted += cache->prefetched[key];
            moe_cache_make_absent(cache, domain, key);
        }
        leave_stack(cache, domain, slot);
        MOE_ASSERT(!cache->closed[slot] && domain->n_open > 0);
        cache->closed[slot] = true;
        domain->n_open--;
    }
    cache->n_changes++;
    MOE_ASSERT(moe_expert_cache_is_sane(cache));
    return true;
}

void moe_expert_cache_open_again(moe_expert_cache *cache, uint32_t first, uint32_t n_run)
{
    MOE_ASSERT(first < cache->n_slots && n_run <= cache->n_slots - first);
    uint32_t d = 0;
    while (first >= cache->domains[d].first_slot + cache->domains[d].n_slots) {
        d++;
    }
    moe_cache_domain *domain = &cache->domains[d];
    MOE_ASSERT(first >= domain->first_slot &&
               first + n_run <= domain->first_slot + domain->n_slots);
    for (uint32_t slot = first; slot < first + n_run; slot++) {
        MOE_ASSERT(cache->closed[slot] && cache->key_of_slot[slot] == MOE_KEY_NONE);
        cache->closed[slot] = false;
        domain->n_open++;
        cache->free_slots[domain->first_slot + domain->n_free++] = slot;
    }
    cache->n_changes++;
    MOE_ASSERT(moe_expert_cache_is_sane(cache));
}

uint32_t moe_expert_cache_n_closed(const moe_expert_cache *cache)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        n += cache->domains[d].n_slots - cache->domains[d].n_open;
    }
    return n;
}

bool moe_expert_cache_is_closed(const moe_expert_cache *cache, uint32_t slot)
{
    MOE_ASSERT(slot < cache->n_slots);
    return cache->closed[slot];
}
