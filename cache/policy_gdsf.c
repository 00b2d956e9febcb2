/* SPDX-License-Identifier: MIT */
/* GreedyDual-Size-Frequency (Cherkasova, HPL-98-69R1, 1998): evicts the key with the smallest
 *
 *     clock + uses since it came * cost of fetching / size,
 *
 * where "came" means: into the cache. The clock is then set to this smallest value, so that keys
 * which were used often once do not stay for ever. The key that takes the slot still counts from
 * the old clock, as in the paper. The slots of a domain have one size; with equal costs this is LFU
 * with dynamic ageing. Ties go to the least recently used. O(log n). */
#include <stdlib.h>

#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"

typedef struct gdsf_state {
    moe_ranked *ranked;       /* its weights are costs */
    double *uses;             /* [n_keys] uses since the key came into the cache */
    double clock, next_clock; /* next_clock: for keys that are used after the next insertion */
    /* The nominated key. The clock is set only when this key leaves, not when others do. */
    uint32_t nominated;
} gdsf_state;

static void gdsf_destroy(void *state)
{
    gdsf_state *gdsf = state;
    if (gdsf->ranked != NULL) {
        moe_ranked_destroy(gdsf->ranked);
    }
    free(gdsf->uses);
    free(gdsf);
}

static void *gdsf_create(const moe_policy_config *config)
{
    gdsf_state *gdsf = moe_calloc(1, sizeof *gdsf);
    if (gdsf == NULL) {
        return NULL;
    }
    gdsf->nominated = MOE_KEY_NONE;
    gdsf->ranked = moe_ranked_create(config, 0.0);
    gdsf->uses = moe_calloc(config->n_keys, sizeof *gdsf->uses);
    if (gdsf->ranked == NULL || gdsf->uses == NULL) {
        gdsf_destroy(gdsf);
        return NULL;
    }
    for (uint32_t key = 0; key < config->n_keys; key++) {
        gdsf->ranked->weight[key] =
            config->fetch_cost != NULL ? (double)config->fetch_cost[key] : 1.0;
    }
    return gdsf;
}

static void gdsf_use(gdsf_state *gdsf, uint32_t key, const moe_policy_access *access)
{
    gdsf->uses[key] += access->n_rows > 0; /* a prefetch is not a use */
    gdsf->ranked->score[key] = gdsf->clock + gdsf->uses[key] * gdsf->ranked->weight[key];
    moe_ranked_place(gdsf->ranked, key);
}

static void gdsf_hit(void *state, uint32_t key, const moe_policy_access *access)
{
    gdsf_state *gdsf = state;
    gdsf->clock = gdsf->next_clock;
    gdsf_use(gdsf, key, access);
}

static void gdsf_insert(void *state, uint32_t key, const moe_policy_access *access)
{
    gdsf_state *gdsf = state;
    gdsf->uses[key] = 0;
    gdsf_use(gdsf, key, access);
    gdsf->clock = gdsf->next_clock;
}

static void gdsf_evict(void *state, uint32_t key)
{
    gdsf_state *gdsf = state;
    if (key == gdsf->nominated) {
        gdsf->next_clock = gdsf->ranked->score[key];
    }
    moe_ranked_evict(gdsf->ranked, key);
}

static uint32_t gdsf_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                            void *context)
{
    gdsf_state *gdsf = state;
    gdsf->nominated = moe_ranked_victim(gdsf->ranked, for_key, evictable, context);
    return gdsf->nominated;
}

const moe_policy moe_policy_gdsf = {
    .abi = MOE_POLICY_ABI,
    .name = "gdsf",
    .create = gdsf_create,
    .destroy = gdsf_destroy,
    .hit = gdsf_hit,
    .insert = gdsf_insert,
    .evict = gdsf_evict,
    .victim = gdsf_victim,
    .end_pass = moe_policy_ignore_pass,
};
