/* SPDX-License-Identifier: MIT */
/* The state of an expert cache, for the files that create and change it. Two arrays are each
 * other's inverse,
 *
 *    slot_of_key: [n_keys]   key -> slot or MOE_SLOT_NONE
 *    key_of_slot: [n_slots]  slot -> key or MOE_KEY_NONE
 *
 * and the slots are divided into domains, each with its own stack of free slots and policy object:
 *
 *    slots: | class 0: layer 0 | class 0: layer 2 | class 1: layer 1 | ...   per_layer
 *    slots: | class 0: layers 0 and 2             | class 1: layer 1 | ...   otherwise
 *
 * The policy of a one-layer domain sees that layer only: the cache subtracts first_key from its
 * keys. */
#ifndef MOE_CACHE_EXPERT_CACHE_STATE_H
#define MOE_CACHE_EXPERT_CACHE_STATE_H

#include <stddef.h>

#include "cache/expert_cache.h"
#include "cache/key_list.h"

#define MOE_DOMAIN_NONE UINT32_MAX

typedef struct moe_cache_domain {
    moe_expert_cache *cache;
    void *state; /* the policy's */
    uint32_t class_id;
    bool single_layer;  /* the policy sees one layer */
    uint32_t first_key; /* subtracted from keys before the policy sees them */
    uint32_t n_layers;
    uint32_t first_slot;
    uint32_t n_slots;
    uint32_t n_open;   /* slots that are not closed (moe_expert_cache_close()) */
    uint32_t n_free;   /* the stack is free_slots[first_slot .. first_slot + n_free) */
    uint32_t n_pinned; /* keys with pins */
    uint32_t n_spare;  /* keys that moe_cache_is_spare() holds for */
} moe_cache_domain;

/* Where a victim may come from, relative to the key that a scan has reached: from the keys before
 * it, from later layers, or from anywhere. */
typedef enum moe_victim_keys { MOE_FROM_BEHIND, MOE_FROM_AHEAD, MOE_FROM_ALL } moe_victim_keys;

struct moe_expert_cache {
    /* Set at creation. */
    const moe_policy *policy;
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_keys;
    uint32_t n_slots;
    uint32_t n_domains;
    moe_cache_domain *domains;
    uint32_t *domain_of_layer; /* [n_layer] or MOE_DOMAIN_NONE */
    /* The caches of the tiers above and below this one, or NULL (moe_expert_cache_stack()). */
    moe_expert_cache *above, *below;
    moe_key_list spare; /* with a tier above: a list for each domain, the last used first */
    /* Changing. */
    uint32_t *slot_of_key;
    uint32_t *key_of_slot;
    uint32_t *free_slots; /* [n_slots] the domains' stacks of free slots */
    bool *closed;         /* [n_slots] out of use: holds no key and is not on the free stack */
    uint32_t *pins;       /* [n_keys] */
    bool *prefetched;     /* [n_keys] given a slot ahead of demand and not used since */
    /* [n_keys] nominated already; all false except while victims are nominated */
    bool *named;
    uint32_t scanned;     /* the key that a scan has come to, or MOE_NO_SCAN */
    moe_victim_keys from; /* MOE_FROM_ALL, except while a scan's victim is chosen */
    uint32_t n_resident;
    uint64_t n_changes;
    moe_expert_cache_stats stats;
};

/* Returns the key's domain. NULL: the key is not in the model, or its layer has no experts. */
static inline moe_cache_domain *moe_cache_domain_of(const moe_expert_cache *cache, uint32_t key)
{
    if (key >= cache->n_keys) {
        return NULL;
    }
    uint32_t domain = cache->domain_of_layer[key / cache->n_expert];
    return domain == MOE_DOMAIN_NONE ? NULL : &cache->domains[domain];
}

/* Whether both tiers hold the key and neither pins it. A key that is pinned above may still be
 * copied there from this tier. */
static inline bool moe_cache_is_spare(const moe_expert_cache *cache, uint32_t key)
{
    return cache->slot_of_key[key] != MOE_SLOT_NONE && cache->pins[key] == 0 &&
           cache->above->slot_of_key[key] != MOE_SLOT_NONE && cache->above->pins[key] == 0;
}

/* Whether a domain's counts are consistent: O(1), checked after every change.
 * moe_expert_cache_is_sane() checks the whole cache. */
bool moe_cache_domain_counts_are_sane(const moe_expert_cache *cache,
                                      const moe_cache_domain *domain);

#endif
