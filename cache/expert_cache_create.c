/* SPDX-License-Identifier: MIT */
/* Creates an expert cache. Layers are gathered into domains: one for each size class, or one for
 * each layer. The slots of a class are divided among its domains. Each domain has a policy object
 * that sees only its own layers. */
#include "cache/expert_cache_state.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

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
    cache->named = moe_calloc(n_keys, sizeof *cache->named);
    cache->key_of_slot = moe_calloc(n_slots, sizeof *cache->key_of_slot);
    cache->free_slots = moe_calloc(n_slots, sizeof *cache->free_slots);
    cache->closed = moe_calloc(n_slots, sizeof *cache->closed);
    if (cache->domain_of_layer == NULL || cache->slot_of_key == NULL || cache->pins == NULL ||
        cache->prefetched == NULL || cache->named == NULL || cache->key_of_slot == NULL ||
        cache->free_slots == NULL || cache->closed == NULL) {
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

/* Decides which layers form a domain. size_domains() then divides the slots among the domains. */
static int make_domains(moe_expert_cache *cache, const moe_expert_cache_options *o)
{
    uint32_t n_most = o->per_layer ? o->n_layer : o->n_classes;
    cache->domains = moe_calloc(n_most, sizeof *cache->domains);
    if (cache->domains == NULL) {
        return MOE_ERR_MEMORY;
    }
    for (uint32_t c = 0; c < o->n_classes; c++) {
        uint32_t domain = MOE_DOMAIN_NONE;
        for (uint32_t layer = 0; layer < o->n_layer; layer++) {
            if (class_of_layer(o, layer) != c) {
                continue;
            }
            if (domain == MOE_DOMAIN_NONE || o->per_layer) {
                domain = cache->n_domains++;
                cache->domains[domain] = (moe_cache_domain){
                    .cache = cache,
                    .class_id = c,
                    .single_layer = o->per_layer,
                    .first_key = o->per_layer ? layer * o->n_expert : 0,
                };
            }
            MOE_ASSERT(cache->n_domains <= n_most);
            cache->domain_of_layer[layer] = domain;
            cache->domains[domain].n_layers++;
        }
    }
    for (uint32_t layer = 0; layer < o->n_layer; layer++) {
        if (class_of_layer(o, layer) == UINT32_MAX) {
            cache->domain_of_layer[layer] = MOE_DOMAIN_NONE;
        }
    }
    return MOE_OK;
}

/* Numbers the slots class by class, including classes without layers. If the slots of a class
 * cannot be divided evenly, its first layers get one more. */
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
            moe_cache_domain *domain = &cache->domains[d];
            domain->first_slot = slot;
            domain->n_slots =
                o->slots_of_class[c] / n_domains + (i < o->slots_of_class[c] % n_domains);
            slot += domain->n_slots;
        }
        first_slot += o->slots_of_class[c];
        MOE_ASSERT(n_domains == 0 || slot == first_slot);
    }
    MOE_ASSERT(d == cache->n_domains && first_slot == cache->n_slots);
    return MOE_OK;
}

static int start_domain(moe_expert_cache *cache, moe_cache_domain *domain,
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
    domain->n_free = domain->n_open = domain->n_slots;
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
    cache->scanned = MOE_NO_SCAN;
    cache->from = MOE_FROM_ALL;
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
    MOE_ASSERT(moe_expert_cache_is_sane(cache));
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
    moe_key_list_release(&cache->spare);
    free(cache->domains);
    free(cache->domain_of_layer);
    free(cache->slot_of_key);
    free(cache->key_of_slot);
    free(cache->free_slots);
    free(cache->closed);
    free(cache->pins);
    free(cache->prefetched);
    free(cache->named);
    free(cache);
    *cache_ptr = NULL;
}
