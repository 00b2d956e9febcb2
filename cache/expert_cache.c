/* SPDX-License-Identifier: MIT */
/* The mechanism: two arrays that are each other's inverse,
 *
 *     slot_of_key: [n_keys]   key -> slot or MOE_SLOT_NONE
 *     key_of_slot: [n_slots]  slot -> key or MOE_KEY_NONE
 *
 * and the slots cut into domains, each with a stack of free slots and a policy object of its own:
 *
 *     slots: | class 0: layer 0 | class 0: layer 2 | class 1: layer 1 | ...   per_layer
 *     slots: | class 0: layers 0 and 2             | class 1: layer 1 | ...   otherwise
 *
 * A domain of one layer shows its policy that layer alone: keys are shifted by first_key. */
#include "cache/expert_cache.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

#define DOMAIN_NONE UINT32_MAX

typedef struct cache_domain {
    moe_expert_cache *cache;
    void *state; /* of the policy */
    uint32_t class_id;
    bool single_layer;  /* the policy sees one layer */
    uint32_t first_key; /* subtracted from keys before the policy sees them */
    uint32_t n_layers;
    uint32_t first_slot;
    uint32_t n_slots;
    uint32_t n_free;   /* the stack is free_slots[first_slot .. first_slot + n_free) */
    uint32_t n_pinned; /* keys with pins */
} cache_domain;

struct moe_expert_cache {
    /* Set at creation. */
    const moe_policy *policy;
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_keys;
    uint32_t n_slots;
    uint32_t n_domains;
    cache_domain *domains;
    uint32_t *domain_of_layer; /* [n_layer] or DOMAIN_NONE */
    /* Changing. */
    uint32_t *slot_of_key;
    uint32_t *key_of_slot;
    uint32_t *free_slots; /* [n_slots] */
    uint32_t *pins;       /* [n_keys] */
    bool *prefetched;     /* [n_keys] given a slot ahead of demand and not used since */
    uint32_t n_resident;
    moe_expert_cache_stats stats;
};

/* ---- Creation ---- */

static uint32_t class_of_layer(const moe_expert_cache_options *o, uint32_t layer)
{
    return o->class_of_layer == NULL ? 0 : o->class_of_layer[layer];
}

static int check_needs(const moe_expert_cache_options *o, moe_error *err)
{
    const char *name = o->policy->name;
    if ((o->policy->needs & MOE_POLICY_NEEDS_HOTNESS) != 0 && o->hotness == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "cache policy %s needs the experts' hotness from a calibration", name);
    }
    if ((o->policy->needs & MOE_POLICY_NEEDS_GATES) != 0 && !o->has_gates) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "cache policy %s needs router probabilities, which are not recorded here",
                        name);
    }
    if ((o->policy->needs & MOE_POLICY_NEEDS_FUTURE) != 0 && !o->has_future) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "cache policy %s knows the future: it is for simulations of a trace", name);
    }
    return MOE_OK;
}

static int check_options(const moe_expert_cache_options *o, moe_error *err)
{
    uint64_t n_keys = (uint64_t)o->n_layer * o->n_expert;
    if (n_keys == 0 || n_keys >= MOE_KEY_NONE) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "an expert cache for %u layers of %u experts: 1 to 2^32 - 2 experts in all "
                        "are possible",
                        o->n_layer, o->n_expert);
    }
    if (o->n_classes == 0 || o->slots_of_class == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "an expert cache needs at least one size class");
    }
    uint64_t n_slots = 0;
    for (uint32_t c = 0; c < o->n_classes; c++) {
        n_slots += o->slots_of_class[c];
    }
    if (n_slots >= MOE_SLOT_NONE) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "an expert cache of 2^32 or more slots");
    }
    for (uint32_t layer = 0; layer < o->n_layer; layer++) {
        uint32_t c = class_of_layer(o, layer);
        if (c >= o->n_classes && c != UINT32_MAX) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "layer %u has size class %u of %u", layer, c,
                            o->n_classes);
        }
    }
    return check_needs(o, err);
}

static bool allocate(moe_expert_cache *cache)
{
    uint32_t n_keys = cache->n_keys;
    uint32_t n_slots = cache->n_slots;
    cache->domain_of_layer = moe_calloc(cache->n_layer, sizeof *cache->domain_of_layer);
    cache->slot_of_key = moe_calloc(n_keys, sizeof *cache->slot_of_key);
    cache->pins = moe_calloc(n_keys, sizeof *cache->pins);
    cache->prefetched = moe_calloc(n_keys, sizeof *cache->prefetched);
    cache->key_of_slot = moe_calloc(n_slots, sizeof *cache->key_of_slot);
    cache->free_slots = moe_calloc(n_slots, sizeof *cache->free_slots);
    if (cache->domain_of_layer == NULL || cache->slot_of_key == NULL || cache->pins == NULL ||
        cache->prefetched == NULL || cache->key_of_slot == NULL || cache->free_slots == NULL) {
        return false;
    }
    for (uint32_t key = 0; key < n_keys; key++) {
        cache->slot_of_key[key] = MOE_SLOT_NONE;
    }
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        cache->key_of_slot[slot] = MOE_KEY_NONE;
    }
    return true;
}

/* Which layers share a domain; sizes come after. */
static int make_domains(moe_expert_cache *cache, const moe_expert_cache_options *o)
{
    uint32_t n_most = o->per_layer ? o->n_layer : o->n_classes;
    cache->domains = moe_calloc(n_most, sizeof *cache->domains);
    if (cache->domains == NULL) {
        return MOE_ERR_MEMORY;
    }
    for (uint32_t c = 0; c < o->n_classes; c++) {
        uint32_t domain = DOMAIN_NONE;
        for (uint32_t layer = 0; layer < o->n_layer; layer++) {
            if (class_of_layer(o, layer) != c) {
                continue;
            }
            if (domain == DOMAIN_NONE || o->per_layer) {
                domain = cache->n_domains++;
                cache->domains[domain] = (cache_domain){
                    .cache = cache,
                    .class_id = c,
                    .single_layer = o->per_layer,
                    .first_key = o->per_layer ? layer * o->n_expert : 0,
                };
            }
            cache->domain_of_layer[layer] = domain;
            cache->domains[domain].n_layers++;
        }
    }
    for (uint32_t layer = 0; layer < o->n_layer; layer++) {
        if (class_of_layer(o, layer) == UINT32_MAX) {
            cache->domain_of_layer[layer] = DOMAIN_NONE;
        }
    }
    return MOE_OK;
}

/* Slots are numbered through the classes, also those of a class without layers. What does not
 * divide evenly goes to the first layers of a class. */
static int size_domains(moe_expert_cache *cache, const moe_expert_cache_options *o, moe_error *err)
{
    uint32_t first_slot = 0;
    uint32_t d = 0;
    for (uint32_t c = 0; c < o->n_classes; c++) {
        uint32_t n_domains = 0;
        while (d + n_domains < cache->n_domains && cache->domains[d + n_domains].class_id == c) {
            n_domains++;
        }
        if (o->slots_of_class[c] < n_domains) {
            return moe_fail(err, MOE_ERR_BUDGET,
                            "expert cache: %u slots of size class %u; %u %s it, and each needs one",
                            o->slots_of_class[c], c, n_domains,
                            o->per_layer ? "layers are of" : "pool is of");
        }
        uint32_t slot = first_slot;
        for (uint32_t i = 0; i < n_domains; i++, d++) {
            cache_domain *domain = &cache->domains[d];
            domain->first_slot = slot;
            domain->n_slots =
                o->slots_of_class[c] / n_domains + (i < o->slots_of_class[c] % n_domains);
            slot += domain->n_slots;
        }
        first_slot += o->slots_of_class[c];
    }
    return MOE_OK;
}

static int start_domain(moe_expert_cache *cache, cache_domain *domain,
                        const moe_expert_cache_options *o, moe_error *err)
{
    uint32_t n_layer = domain->single_layer ? 1 : o->n_layer;
    moe_policy_config config = {
        .struct_size = sizeof config,
        .n_layer = n_layer,
        .n_expert = o->n_expert,
        .n_expert_used = o->n_expert_used,
        .n_slots = domain->n_slots,
        .n_keys = n_layer * o->n_expert,
        .hotness = o->hotness == NULL ? NULL : o->hotness + domain->first_key,
        .fetch_cost = o->fetch_cost == NULL ? NULL : o->fetch_cost + domain->first_key,
        .seed = o->seed,
    };
    /* The lowest slot is on top of the stack. */
    domain->n_free = domain->n_slots;
    for (uint32_t i = 0; i < domain->n_slots; i++) {
        cache->free_slots[domain->first_slot + i] = domain->first_slot + domain->n_slots - 1 - i;
    }
    domain->state = cache->policy->create(&config);
    if (domain->state == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for cache policy %s",
                        cache->policy->name);
    }
    return MOE_OK;
}

int moe_expert_cache_create(moe_expert_cache **out, const moe_expert_cache_options *options,
                            moe_error *err)
{
    *out = NULL;
    int status = check_options(options, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_expert_cache *cache = moe_calloc(1, sizeof *cache);
    if (cache == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the expert cache");
    }
    cache->policy = options->policy;
    cache->n_layer = options->n_layer;
    cache->n_expert = options->n_expert;
    cache->n_keys = options->n_layer * options->n_expert;
    for (uint32_t c = 0; c < options->n_classes; c++) {
        cache->n_slots += options->slots_of_class[c];
    }
    if (!allocate(cache) || make_domains(cache, options) != MOE_OK) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for the expert cache's tables");
        goto fail;
    }
    status = size_domains(cache, options, err);
    for (uint32_t d = 0; d < cache->n_domains && status == MOE_OK; d++) {
        status = start_domain(cache, &cache->domains[d], options, err);
    }
    if (status != MOE_OK) {
        goto fail;
    }
    *out = cache;
    return MOE_OK;
fail:
    moe_expert_cache_destroy(&cache);
    return status;
}

void moe_expert_cache_destroy(moe_expert_cache **cache_ptr)
{
    moe_expert_cache *cache = *cache_ptr;
    if (cache == NULL) {
        return;
    }
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        if (cache->domains[d].state != NULL) {
            cache->policy->destroy(cache->domains[d].state);
        }
    }
    free(cache->domains);
    free(cache->domain_of_layer);
    free(cache->slot_of_key);
    free(cache->key_of_slot);
    free(cache->free_slots);
    free(cache->pins);
    free(cache->prefetched);
    free(cache);
    *cache_ptr = NULL;
}

/* ---- Lookup ---- */

/* NULL for a key outside the model, or of a layer without experts. */
static cache_domain *domain_of(const moe_expert_cache *cache, uint32_t key)
{
    if (key >= cache->n_keys) {
        return NULL;
    }
    uint32_t domain = cache->domain_of_layer[key / cache->n_expert];
    return domain == DOMAIN_NONE ? NULL : &cache->domains[domain];
}

uint32_t moe_expert_cache_find(const moe_expert_cache *cache, uint32_t key)
{
    return key < cache->n_keys ? cache->slot_of_key[key] : MOE_SLOT_NONE;
}

uint32_t moe_expert_cache_key_of(const moe_expert_cache *cache, uint32_t slot)
{
    return slot < cache->n_slots ? cache->key_of_slot[slot] : MOE_KEY_NONE;
}

/* ---- Changes ---- */

/* What a policy of this domain is told of an access. */
static moe_policy_access seen_access(const cache_domain *domain, const moe_policy_access *access)
{
    moe_policy_access seen = *access;
    if (domain->single_layer) {
        seen.layer = 0;
    }
    return seen;
}

static void make_absent(moe_expert_cache *cache, cache_domain *domain, uint32_t key)
{
    uint32_t slot = cache->slot_of_key[key];
    cache->policy->evict(domain->state, key - domain->first_key);
    cache->slot_of_key[key] = MOE_SLOT_NONE;
    cache->key_of_slot[slot] = MOE_KEY_NONE;
    cache->free_slots[domain->first_slot + domain->n_free++] = slot;
    cache->prefetched[key] = false;
    cache->n_resident--;
}

/* The moe_policy_evictable of a domain: any number may come from a plug-in. */
static bool evictable(void *context, uint32_t seen_key)
{
    const cache_domain *domain = context;
    const moe_expert_cache *cache = domain->cache;
    uint64_t key = (uint64_t)seen_key + domain->first_key;
    if (key >= cache->n_keys || cache->slot_of_key[key] == MOE_SLOT_NONE || cache->pins[key] > 0) {
        return false;
    }
    return domain_of(cache, (uint32_t)key) == domain;
}

/* The policy's choice, or, when it breaks its contract, the first slot that may be emptied. */
static uint32_t choose_victim(moe_expert_cache *cache, cache_domain *domain, uint32_t for_key)
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

/* Gives the key a slot; MOE_SLOT_NONE when all of its domain are pinned. */
static uint32_t give_slot(moe_expert_cache *cache, cache_domain *domain, uint32_t key,
                          const moe_policy_access *access, uint32_t *evicted)
{
    *evicted = MOE_KEY_NONE;
    if (domain->n_pinned == domain->n_slots) {
        return MOE_SLOT_NONE;
    }
    if (domain->n_free == 0) {
        uint32_t victim = choose_victim(cache, domain, key);
        if (victim == MOE_KEY_NONE) {
            return MOE_SLOT_NONE;
        }
        cache->stats.evictions++;
        cache->stats.prefetch_wasted += cache->prefetched[victim];
        make_absent(cache, domain, victim);
        *evicted = victim;
    }
    uint32_t slot = cache->free_slots[domain->first_slot + --domain->n_free];
    cache->slot_of_key[key] = slot;
    cache->key_of_slot[slot] = key;
    cache->n_resident++;
    moe_policy_access seen = seen_access(domain, access);
    cache->policy->insert(domain->state, key - domain->first_key, &seen);
    return slot;
}

uint32_t moe_expert_cache_access(moe_expert_cache *cache, uint32_t key,
                                 const moe_policy_access *access, bool *hit, uint32_t *evicted)
{
    cache_domain *domain = domain_of(cache, key);
    *hit = false;
    *evicted = MOE_KEY_NONE;
    if (domain == NULL) {
        return MOE_SLOT_NONE;
    }
    uint32_t slot = cache->slot_of_key[key];
    if (slot != MOE_SLOT_NONE) {
        *hit = true;
        cache->stats.hits++;
        cache->stats.prefetch_used += cache->prefetched[key];
        cache->prefetched[key] = false;
        moe_policy_access seen = seen_access(domain, access);
        cache->policy->hit(domain->state, key - domain->first_key, &seen);
        return slot;
    }
    slot = give_slot(cache, domain, key, access, evicted);
    cache->stats.misses += slot != MOE_SLOT_NONE;
    return slot;
}

uint32_t moe_expert_cache_prefetch(moe_expert_cache *cache, uint32_t key,
                                   const moe_policy_access *access, uint32_t *evicted)
{
    cache_domain *domain = domain_of(cache, key);
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
    cache_domain *domain = domain_of(cache, key);
    if (domain == NULL || cache->slot_of_key[key] == MOE_SLOT_NONE) {
        return;
    }
    domain->n_pinned -= cache->pins[key] > 0;
    cache->pins[key] = 0;
    cache->stats.prefetch_dropped += cache->prefetched[key];
    make_absent(cache, domain, key);
}

void moe_expert_cache_pin(moe_expert_cache *cache, uint32_t key)
{
    cache_domain *domain = domain_of(cache, key);
    if (domain != NULL && cache->slot_of_key[key] != MOE_SLOT_NONE) {
        domain->n_pinned += cache->pins[key]++ == 0;
    }
}

void moe_expert_cache_unpin(moe_expert_cache *cache, uint32_t key)
{
    cache_domain *domain = domain_of(cache, key);
    if (domain != NULL && cache->pins[key] > 0) {
        domain->n_pinned -= --cache->pins[key] == 0;
    }
}

void moe_expert_cache_end_pass(moe_expert_cache *cache, uint64_t pass)
{
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        cache->policy->end_pass(cache->domains[d].state, pass);
    }
}

/* ---- Telling ---- */

bool moe_expert_cache_has_room(const moe_expert_cache *cache, uint32_t key)
{
    const cache_domain *domain = domain_of(cache, key);
    return domain != NULL && domain->n_free > 0;
}

uint32_t moe_expert_cache_n_slots(const moe_expert_cache *cache)
{
    return cache->n_slots;
}

uint32_t moe_expert_cache_n_resident(const moe_expert_cache *cache)
{
    return cache->n_resident;
}

void moe_expert_cache_get_stats(const moe_expert_cache *cache, moe_expert_cache_stats *stats)
{
    *stats = cache->stats;
}

static bool check_domain(const moe_expert_cache *cache, const cache_domain *domain)
{
    uint32_t n_empty = 0;
    uint32_t n_pinned = 0;
    for (uint32_t i = 0; i < domain->n_slots; i++) {
        uint32_t slot = domain->first_slot + i;
        uint32_t key = cache->key_of_slot[slot];
        if (key == MOE_KEY_NONE) {
            n_empty++;
            continue;
        }
        if (key >= cache->n_keys || cache->slot_of_key[key] != slot ||
            domain_of(cache, key) != domain) {
            return false;
        }
        n_pinned += cache->pins[key] > 0;
    }
    for (uint32_t i = 0; i < domain->n_free; i++) {
        uint32_t slot = cache->free_slots[domain->first_slot + i];
        if (slot < domain->first_slot || slot >= domain->first_slot + domain->n_slots ||
            cache->key_of_slot[slot] != MOE_KEY_NONE) {
            return false;
        }
    }
    return n_empty == domain->n_free && n_pinned == domain->n_pinned;
}

bool moe_expert_cache_check(const moe_expert_cache *cache)
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
    for (uint32_t d = 0; d < cache->n_domains; d++) {
        if (!check_domain(cache, &cache->domains[d])) {
            return false;
        }
    }
    const moe_expert_cache_stats *s = &cache->stats;
    return n_resident == cache->n_resident &&
           s->prefetch_inserts ==
               s->prefetch_used + s->prefetch_wasted + s->prefetch_dropped + n_prefetched &&
           s->evictions <= s->misses + s->prefetch_inserts;
}
