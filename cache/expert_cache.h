/* SPDX-License-Identifier: MIT */
/* Which experts are resident in one tier: slots, lookup and pins. The cache moves no bytes; the
 * owner of the slots' memory does. Engine and simulator use the same object, so they always agree.
 * Not thread-safe.
 *
 *    key      an expert: layer * n_expert + its number in the layer
 *    domain   a group of slots of one size, shared by the experts of some layers and governed by
 *             one policy object. Domains are numbered from 0; each has consecutive slots
 *    scan     a time in which each expert is used once, in ascending order of keys, as a long
 *             prompt does (moe_expert_cache_scan()) */
#ifndef MOE_CACHE_EXPERT_CACHE_H
#define MOE_CACHE_EXPERT_CACHE_H

#include <moe/policy.h>
#include <moe/status.h>

typedef struct moe_expert_cache moe_expert_cache;

#define MOE_SLOT_NONE UINT32_MAX

typedef struct moe_expert_cache_options {
    uint32_t n_layer;
    uint32_t n_expert;
    uint32_t n_expert_used;
    const uint32_t *class_of_layer; /* [n_layer] size class of a layer's experts, or NULL: all 0;
                                       UINT32_MAX: a layer without experts */
    uint32_t n_classes;
    const uint32_t *slots_of_class; /* [n_classes]; slots are numbered through the classes */
    bool per_layer;                 /* split a class's slots evenly between its layers */
    const moe_policy *policy;
    const float *hotness;    /* [n_layer * n_expert] or NULL */
    const float *fetch_cost; /* [n_layer * n_expert] or NULL */
    bool has_gates;          /* accesses carry gates */
    bool has_future;         /* accesses carry next uses */
    uint64_t seed;
} moe_expert_cache_options;

typedef struct moe_expert_cache_stats {
    uint64_t hits;
    uint64_t misses;
    uint64_t evictions;
    uint64_t prefetch_inserts;
    uint64_t prefetch_used;    /* prefetched and then hit before being evicted (counted once) */
    uint64_t prefetch_wasted;  /* prefetched and evicted unused */
    uint64_t prefetch_dropped; /* prefetched and dropped unused: failed or cancelled */
    /* Nominations that were not allowed; the first evictable slot was taken instead. */
    uint64_t policy_faults;
} moe_expert_cache_stats;

int moe_expert_cache_create(moe_expert_cache **out, const moe_expert_cache_options *options,
                            moe_error *err);
void moe_expert_cache_destroy(moe_expert_cache **cache);

/* The slot of a resident key, or MOE_SLOT_NONE. Changes nothing. */
uint32_t moe_expert_cache_find(const moe_expert_cache *cache, uint32_t key);
/* The key in a slot, or MOE_KEY_NONE. */
uint32_t moe_expert_cache_key_of(const moe_expert_cache *cache, uint32_t slot);

/* Makes `above` the tier over `below`, a cache of the same model. An expert that both hold and
 * neither pins is spare in `below`. While there are spare experts, `below` evicts the one that was
 * used last in `above`, because it will stay there longest; otherwise the policy nominates. Both
 * caches must be new and are destroyed together. False when memory is short. */
bool moe_expert_cache_stack(moe_expert_cache *below, moe_expert_cache *above);
/* Returns how many spare experts (see above) the key's domain has; 0 without a tier above. */
uint32_t moe_expert_cache_n_spare(const moe_expert_cache *cache, uint32_t key);

/* A demand access. If the key is resident: counts a hit, tells the policy and returns the slot.
 * Otherwise: counts a miss and gives the key a free slot or a victim's; *evicted is the key that
 * lost this slot, or MOE_KEY_NONE. Returns MOE_SLOT_NONE, and counts and changes nothing, when
 * every slot of the key's domain is pinned: the caller then works in waves. */
uint32_t moe_expert_cache_access(moe_expert_cache *cache, uint32_t key,
                                 const moe_policy_access *access, bool *hit, uint32_t *evicted);
/* Gives a slot to a key that is not resident, ahead of its use. Otherwise like
 * moe_expert_cache_access(), but counts neither a hit nor a miss. */
uint32_t moe_expert_cache_prefetch(moe_expert_cache *cache, uint32_t key,
                                   const moe_policy_access *access, uint32_t *evicted);
/* Gives the slot that the caller names to a key that is not resident. The slot must be in the key's
 * domain. It must be empty, or hold a key without pins, which is evicted. */
void moe_expert_cache_take(moe_expert_cache *cache, uint32_t slot, uint32_t key,
                           const moe_policy_access *access);
/* Lists up to n slots of the layer's domain that moe_expert_cache_take() could take: empty slots
 * first, then the slots of the experts that the policy would evict, in its order. Evicts nothing.
 * Returns the number of slots. */
uint32_t moe_expert_cache_nominate(moe_expert_cache *cache, uint32_t layer, uint32_t n,
                                   uint32_t *slots);
/* Returns the number of the layer's domain; MOE_SLOT_NONE for a layer without experts. */
uint32_t moe_expert_cache_domain_of(const moe_expert_cache *cache, uint32_t layer);
/* Removes the key from its slot and drops its pins, after a load that failed or was cancelled. */
void moe_expert_cache_drop(moe_expert_cache *cache, uint32_t key);

/* Pins a resident key, which is then never a victim. Pins nest. */
void moe_expert_cache_pin(moe_expert_cache *cache, uint32_t key);
void moe_expert_cache_unpin(moe_expert_cache *cache, uint32_t key);
bool moe_expert_cache_is_pinned(const moe_expert_cache *cache, uint32_t key);

void moe_expert_cache_end_pass(moe_expert_cache *cache, uint64_t pass);

/* Says that from now on each key is used once, in ascending order, beginning with this key: a scan.
 * This is the worst case of every policy that only looks at the past. Victims then are experts that
 * the scan has passed; if there are none, experts of later layers; only when nothing else is left,
 * experts that the scan still needs in its present layer. The policy chooses among them. A prefetch
 * only evicts experts that the scan has passed. MOE_NO_SCAN: the policy alone decides. */
#define MOE_NO_SCAN UINT32_MAX
void moe_expert_cache_scan(moe_expert_cache *cache, uint32_t key);
/* Returns how many slots a layer's experts could be given now without a loss for the scan: empty
 * slots, and slots whose experts the scan has passed and nothing pins. */
uint32_t moe_expert_cache_scan_room(const moe_expert_cache *cache, uint32_t layer);

/* Whether the policy uses forecasts. */
bool moe_policy_looks_ahead(const moe_policy *policy);
/* Passes forecasts on to the policy, in place of earlier ones. Ignores keys that the model does
 * not have. Does nothing if memory is short or the policy does not use forecasts. */
void moe_expert_cache_lookahead(moe_expert_cache *cache, uint64_t first_pass,
                                const moe_policy_forecast *uses, size_t n);

/* ---- The border between expert slots and other uses of memory ---- */

/* The size of a domain. */
typedef struct moe_cache_domain_size {
    uint32_t class_id;
    uint32_t n_slots;
    uint32_t n_open; /* of n_slots, the slots that are not closed */
    uint32_t n_pinned;
} moe_cache_domain_size;

/* Describes domain number d. Returns false if there is no such domain. */
bool moe_expert_cache_domain(const moe_expert_cache *cache, uint32_t d,
                             moe_cache_domain_size *size);
/* Closes n_run neighbouring slots (a run) of domain d, so that their memory can be used otherwise:
 * they hold no expert until they are opened again. *first is set to the run's first slot. Runs
 * begin at multiples of n_run from the domain's first slot. Closes an empty run if there is one.
 * Otherwise the policy nominates an expert, during a scan one of those that the scan needs last;
 * its run is closed, and all experts in this run are evicted. Returns false if every run has a
 * pinned expert or a closed slot. */
bool moe_expert_cache_close(moe_expert_cache *cache, uint32_t d, uint32_t n_run, uint32_t *first);
/* Opens a run of slots that moe_expert_cache_close() returned. */
void moe_expert_cache_open_again(moe_expert_cache *cache, uint32_t first, uint32_t n_run);
/* Closes a slot for good. It must be empty or closed. */
void moe_expert_cache_withdraw(moe_expert_cache *cache, uint32_t slot);
/* Returns how many slots are closed now. */
uint32_t moe_expert_cache_n_closed(const moe_expert_cache *cache);
bool moe_expert_cache_is_closed(const moe_expert_cache *cache, uint32_t slot);

/* Whether some slot that the key may use is empty. */
bool moe_expert_cache_has_room(const moe_expert_cache *cache, uint32_t key);
uint32_t moe_expert_cache_n_slots(const moe_expert_cache *cache);
uint32_t moe_expert_cache_n_resident(const moe_expert_cache *cache);
/* Returns how often any key was given a slot or lost one. If the number is unchanged, so are the
 * resident experts. */
uint64_t moe_expert_cache_n_changes(const moe_expert_cache *cache);
void moe_expert_cache_get_stats(const moe_expert_cache *cache, moe_expert_cache_stats *stats);
/* Checks what must hold between two calls: lookup, slots, pins, domains and counts agree. O(keys +
 * slots). */
bool moe_expert_cache_is_sane(const moe_expert_cache *cache);

/* Finds a policy by its name ("lru", "lfru", ...), or loads it from a plug-in (a name that ends in
 * ".so"). *plugin: out, a handle to give to moe_policy_release(); NULL for built-in policies. The
 * error lists the names. */
int moe_policy_load(const moe_policy **out, void **plugin, const char *name, moe_error *err);
/* The program's own policy, checked as a plug-in's is; if own is NULL, moe_policy_load(). */
int moe_policy_choose(const moe_policy **out, void **plugin, const moe_policy *own,
                      const char *name, moe_error *err);
void moe_policy_release(void **plugin);
/* The n-th built-in policy, or NULL. */
const moe_policy *moe_policy_at(uint32_t index);
#define MOE_POLICY_DEFAULT "lfru"

#endif
