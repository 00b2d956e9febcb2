/* SPDX-License-Identifier: MIT */
/* The cache's mechanism: lookups, accesses, prefetches and pins decide which expert has which slot.
 * The policy nominates the victim. The cache checks each nomination: the key must be in the
 * policy's domain and not pinned.
 *
 * Slots may be closed and opened again while the cache is in use, because their memory serves
 * another use meanwhile. A closed slot holds no key and is not on its domain's free stack, so no
 * key can get it. */
#include "cache/expert_cache_state.h"
#include "cache/layer_access.h"
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

/* Converts an access to the form that this domain's policy sees: its keys begin at 0. */
static moe_policy_access seen_access(const moe_cache_domain *domain,
                                     const moe_policy_access *access)
{
    moe_policy_access seen = *access;
    if (domain->single_layer) {
        seen.layer = 0;
    }
    return seen;
}

/* Puts a key on its domain's list of spare keys if it is spare (resident in both tiers and pinned
 * in neither); otherwise takes it off. Called after each change of the key's slot or pins in
 * either tier. */
static void note_spare(moe_expert_cache *cache, uint32_t key)
{
    if (cache == NULL || cache->above == NULL) {
        return;
    }
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    bool is = moe_cache_is_spare(cache, key);
    if (is && !moe_key_list_contains(&cache->spare, key)) {
        moe_key_list_push_front(&cache->spare, (uint32_t)(domain - cache->domains), key);
        domain->n_spare++;
    } else if (!is && moe_key_list_contains(&cache->spare, key)) {
        moe_key_list_remove(&cache->spare, key);
        domain->n_spare--;
    }
}

/* Notes that the key's slot or pins have changed. */
static void note_change(moe_expert_cache *cache, uint32_t key)
{
    note_spare(cache, key);
    note_spare(cache->below, key);
}

bool moe_expert_cache_stack(moe_expert_cache *below, moe_expert_cache *above)
{
    MOE_ASSERT(below->n_keys == above->n_keys);
    MOE_ASSERT(below->n_resident == 0 && above->n_resident == 0);
    if (!moe_key_list_init(&below->spare, below->n_keys, below->n_domains)) {
        return false;
    }
    below->above = above;
    above->below = below;
    return true;
}

uint32_t moe_expert_cache_n_spare(const moe_expert_cache *cache, uint32_t key)
{
    const moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    return domain != NULL ? domain->n_spare : 0;
}

/* Takes the key out of its slot and puts the slot on its domain's free stack. */
static void make_absent(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t key)
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
    note_change(cache, key);
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
}

static bool may_come_from(const moe_expert_cache *cache, uint32_t key)
{
    return cache->from == MOE_FROM_ALL ||
           (cache->from == MOE_FROM_BEHIND
                ? key < cache->scanned
                : key / cache->n_expert > cache->scanned / cache->n_expert);
}

/* The moe_policy_evictable by which a domain's policy asks whether a key may be evicted. A plug-in
 * may pass any number as seen_key. */
static bool evictable(void *context, uint32_t seen_key)
{
    const moe_cache_domain *domain = context;
    const moe_expert_cache *cache = domain->cache;
    uint64_t key = (uint64_t)seen_key + domain->first_key;
    if (key >= cache->n_keys || cache->slot_of_key[key] == MOE_SLOT_NONE || cache->pins[key] > 0 ||
        !may_come_from(cache, (uint32_t)key)) {
        return false;
    }
    return moe_cache_domain_of(cache, (uint32_t)key) == domain;
}

void moe_expert_cache_scan(moe_expert_cache *cache, uint32_t key)
{
    cache->scanned = key;
}

uint32_t moe_expert_cache_scan_room(const moe_expert_cache *cache, uint32_t layer)
{
    const moe_cache_domain *domain = moe_cache_domain_of(cache, layer * cache->n_expert);
    uint32_t n = domain != NULL ? domain->n_free : 0;
    for (uint32_t i = 0; domain != NULL && i < domain->n_slots; i++) {
        uint32_t key = cache->key_of_slot[domain->first_slot + i];
        n += key != MOE_KEY_NONE && cache->pins[key] == 0 && key < cache->scanned;
    }
    return n;
}

/* Asks the policy for a victim. Returns MOE_KEY_NONE if the answer breaks the policy's contract. */
static uint32_t choice_of_policy(const moe_expert_cache *cache, moe_cache_domain *domain,
                                 uint32_t for_key)
{
    uint32_t seen =
        cache->policy->victim(domain->state, for_key - domain->first_key, evictable, domain);
    return seen != MOE_KEY_NONE && evictable(domain, seen) ? seen + domain->first_key
                                                           : MOE_KEY_NONE;
}

/* During a scan: asks the policy for a victim among the experts that the scan needs least. Tries
 * the values of moe_victim_keys in order, up to `last`. */
static uint32_t choose_behind_scan(moe_expert_cache *cache, moe_cache_domain *domain,
                                   uint32_t for_key, moe_victim_keys last)
{
    uint32_t victim = MOE_KEY_NONE;
    for (int from = MOE_FROM_BEHIND; from <= (int)last && victim == MOE_KEY_NONE; from++) {
        cache->from = (moe_victim_keys)from;
        victim = choice_of_policy(cache, domain, for_key);
    }
    cache->from = MOE_FROM_ALL;
    return victim;
}

/* Returns a spare expert; if there is none, the policy's choice; if this breaks the contract, the
 * key in the first evictable slot. During a scan, returns MOE_KEY_NONE for a prefetch that would
 * have to evict an expert which the scan needs. */
static uint32_t choose_victim(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t for_key,
                              bool prefetches)
{
    if (domain->n_spare > 0) {
        return moe_key_list_first(&cache->spare, (uint32_t)(domain - cache->domains));
    }
    uint32_t victim;
    if (cache->scanned != MOE_NO_SCAN) {
        victim = choose_behind_scan(cache, domain, for_key,
                                    prefetches ? MOE_FROM_BEHIND : MOE_FROM_AHEAD);
        if (victim != MOE_KEY_NONE || prefetches) {
            return victim;
        }
    }
    victim = choice_of_policy(cache, domain, for_key);
    if (victim != MOE_KEY_NONE) {
        return victim;
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

/* Gives the key a slot. Returns MOE_SLOT_NONE if all slots of its domain are pinned, or if it is
 * a prefetch that may not evict anything. */
static uint32_t give_slot(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t key,
                          const moe_policy_access *access, bool prefetches, uint32_t *evicted)
{
    MOE_ASSERT(moe_cache_domain_of(cache, key) == domain);
    MOE_ASSERT(cache->slot_of_key[key] == MOE_SLOT_NONE && cache->pins[key] == 0);
    *evicted = MOE_KEY_NONE;
    if (domain->n_pinned == domain->n_open) {
        return MOE_SLOT_NONE;
    }
    if (domain->n_free == 0) {
        uint32_t victim = choose_victim(cache, domain, key, prefetches);
        if (victim == MOE_KEY_NONE) {
            return MOE_SLOT_NONE;
        }
        MOE_ASSERT(moe_cache_domain_of(cache, victim) == domain && cache->pins[victim] == 0);
        cache->stats.evictions++;
        cache->stats.prefetch_wasted += cache->prefetched[victim];
        make_absent(cache, domain, victim);
        *evicted = victim;
    }
    uint32_t slot = cache->free_slots[domain->first_slot + --domain->n_free];
    MOE_ASSERT(slot >= domain->first_slot && slot - domain->first_slot < domain->n_slots);
    MOE_ASSERT(cache->key_of_slot[slot] == MOE_KEY_NONE && !cache->closed[slot]);
    cache->slot_of_key[key] = slot;
    cache->key_of_slot[slot] = key;
    cache->n_changes++;
    cache->n_resident++;
    note_change(cache, key);
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
    slot = give_slot(cache, domain, key, access, false, evicted);
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
    uint32_t slot = give_slot(cache, domain, key, access, true, evicted);
    if (slot != MOE_SLOT_NONE) {
        cache->prefetched[key] = true;
        cache->stats.prefetch_inserts++;
    }
    return slot;
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

void moe_expert_cache_take(moe_expert_cache *cache, uint32_t slot, uint32_t key,
                           const moe_policy_access *access)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    MOE_ASSERT(domain != NULL && cache->slot_of_key[key] == MOE_SLOT_NONE);
    MOE_ASSERT(slot >= domain->first_slot && slot - domain->first_slot < domain->n_slots);
    uint32_t victim = cache->key_of_slot[slot];
    uint32_t evicted;
    if (victim != MOE_KEY_NONE) {
        cache->stats.evictions++;
        cache->stats.prefetch_wasted += cache->prefetched[victim];
        make_absent(cache, domain, victim);
    }
    leave_stack(cache, domain, slot); /* the slot is now on top of the stack */
    cache->free_slots[domain->first_slot + domain->n_free++] = slot;
    uint32_t given = give_slot(cache, domain, key, access, false, &evicted);
    MOE_ASSERT(given == slot && evicted == MOE_KEY_NONE);
    (void)given;
    cache->stats.misses++;
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
    make_absent(cache, domain, key);
}

void moe_expert_cache_pin(moe_expert_cache *cache, uint32_t key)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    MOE_ASSERT(domain != NULL && cache->slot_of_key[key] != MOE_SLOT_NONE);
    MOE_ASSERT(cache->pins[key] < UINT32_MAX);
    domain->n_pinned += cache->pins[key]++ == 0;
    note_change(cache, key);
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
}

void moe_expert_cache_unpin(moe_expert_cache *cache, uint32_t key)
{
    moe_cache_domain *domain = moe_cache_domain_of(cache, key);
    MOE_ASSERT(domain != NULL && cache->pins[key] > 0 && domain->n_pinned > 0);
    domain->n_pinned -= --cache->pins[key] == 0;
    note_change(cache, key);
    MOE_ASSERT(moe_cache_domain_counts_are_sane(cache, domain));
}

void moe_expert_cache_end_pass(moe_expert_cache *cache, uint64_t pass)
{
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        cache->policy->end_pass(cache->domains[d].state, pass);
    }
    MOE_ASSERT(moe_expert_cache_is_sane(cache));
}

/* ---- What the cache tells ---- */

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

/* ---- A layer ---- */

uint32_t moe_layer_access_wave(moe_expert_cache *cache, const uint32_t *keys,
                               const moe_policy_access *accesses, uint32_t n, bool *handled,
                               moe_layer_access *out)
{
    uint32_t n_out = 0;
    for (uint32_t i = 0; MOE_ASSERTS_ARE_ON && i + 1 < n; i++) {
        MOE_ASSERT(keys[i] < keys[i + 1]);
    }
    for (int resident_pass = 1; resident_pass >= 0; resident_pass--) {
        for (uint32_t i = 0; i < n; i++) {
            bool resident = moe_expert_cache_find(cache, keys[i]) != MOE_SLOT_NONE;
            if (handled[i] || resident != (resident_pass == 1)) {
                continue;
            }
            moe_layer_access *access = &out[n_out];
            access->position = i;
            access->slot = moe_expert_cache_access(cache, keys[i], &accesses[i], &access->hit,
                                                   &access->evicted);
            if (access->slot == MOE_SLOT_NONE) {
                return n_out;
            }
            MOE_ASSERT(access->hit == resident && (!resident || access->evicted == MOE_KEY_NONE));
            moe_expert_cache_pin(cache, keys[i]);
            handled[i] = true;
            n_out++;
        }
    }
    return n_out;
}

/* ---- Closing and opening slots ---- */

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

/* A search for a run of neighbouring slots, in one domain, that can be closed. */
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

/* Returns the last run of slots for which may_close() is true, or MOE_SLOT_NONE. */
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

/* The moe_policy_evictable of such a search: only keys in runs that may be closed are evictable. */
static bool in_closable_run(void *context, uint32_t seen_key)
{
    const run_search *s = context;
    uint64_t key = (uint64_t)seen_key + s->domain->first_key;
    if (key >= s->cache->n_keys || s->cache->slot_of_key[key] == MOE_SLOT_NONE ||
        !may_come_from(s->cache, (uint32_t)key)) {
        return false;
    }
    uint32_t slot = s->cache->slot_of_key[key];
    return slot >= s->domain->first_slot && slot < s->domain->first_slot + s->domain->n_slots &&
           may_close(s, run_of_slot(s, slot), false);
}

/* Returns the key with which the next pass begins: the first expert of the domain's first layer,
 * numbered as the policy sees it. */
static uint32_t first_seen_key(const moe_expert_cache *cache, const moe_cache_domain *domain)
{
    for (uint32_t l = 0; l < cache->n_layer && !domain->single_layer; l++) {
        if (cache->domain_of_layer[l] == (uint32_t)(domain - cache->domains)) {
            return l * cache->n_expert - domain->first_key;
        }
    }
    return 0;
}

/* Asks the policy for a victim, and returns the run of slots that the victim is in. During a scan
 * the victim is one that the scan needs least. */
static uint32_t coldest_run(moe_expert_cache *cache, const moe_cache_domain *domain, run_search *s)
{
    if (find_run(s, false) == MOE_SLOT_NONE) {
        return MOE_SLOT_NONE;
    }
    static const moe_victim_keys order[] = {MOE_FROM_BEHIND, MOE_FROM_AHEAD, MOE_FROM_ALL};
    const uint32_t first = first_seen_key(cache, domain);
    uint32_t run = MOE_SLOT_NONE;
    for (uint32_t i = cache->scanned != MOE_NO_SCAN ? 0 : 2; i < 3 && run == MOE_SLOT_NONE; i++) {
        cache->from = order[i];
        const uint32_t seen = cache->policy->victim(domain->state, first, in_closable_run, s);
        if (seen != MOE_KEY_NONE && in_closable_run(s, seen)) {
            run = run_of_slot(s, cache->slot_of_key[seen + domain->first_key]);
        }
    }
    cache->from = MOE_FROM_ALL;
    if (run != MOE_SLOT_NONE) {
        return run;
    }
    cache->stats.policy_faults++;
    return find_run(s, false);
}

/* Closes an empty slot. */
static void take_out(moe_expert_cache *cache, moe_cache_domain *domain, uint32_t slot)
{
    MOE_ASSERT(!cache->closed[slot] && domain->n_open > 0);
    leave_stack(cache, domain, slot);
    cache->closed[slot] = true;
    domain->n_open--;
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
            make_absent(cache, domain, key);
        }
        take_out(cache, domain, slot);
    }
    cache->n_changes++;
    MOE_ASSERT(moe_expert_cache_is_sane(cache));
    return true;
}

static moe_cache_domain *domain_of_slot(moe_expert_cache *cache, uint32_t slot)
{
    uint32_t d = 0;
    MOE_ASSERT(slot < cache->n_slots);
    while (slot >= cache->domains[d].first_slot + cache->domains[d].n_slots) {
        d++;
    }
    return &cache->domains[d];
}

void moe_expert_cache_withdraw(moe_expert_cache *cache, uint32_t slot)
{
    MOE_ASSERT(cache->key_of_slot[slot] == MOE_KEY_NONE);
    if (!cache->closed[slot]) {
        take_out(cache, domain_of_slot(cache, slot), slot);
        cache->n_changes++;
    }
}

void moe_expert_cache_open_again(moe_expert_cache *cache, uint32_t first, uint32_t n_run)
{
    MOE_ASSERT(first < cache->n_slots && n_run <= cache->n_slots - first);
    moe_cache_domain *domain = domain_of_slot(cache, first);
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
