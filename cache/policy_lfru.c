/* SPDX-License-Identifier: MIT */
/* The default: least frequently and recently used, in the circle of layers.
 *
 * Every expert, resident or not, has an estimate p of the probability that the next pass uses it. p
 * mixes two means: one over the last few passes (text repeats itself from token to token) and one
 * over many passes (every model, and every text, has favourites). An expert of a layer that comes d
 * layers from now, round the circle of layers, is expected to be used
 *
 *    d + n_layer * (1/p - 1)
 *
 * layers from now. The expert with the largest expectation is evicted: this is Belady's rule, with
 * an estimate in place of the known future. Policies of plain recency and frequency lack d. In a
 * cache smaller than a pass's working set, LRU hits nothing, because it always evicts what the next
 * layers need.
 *
 * Forecasts of the next passes (lookahead()) replace 1/p - 1 for those passes. An expert in a
 * forecast is expected at that pass with the forecast's probability. An expert in no forecast is
 * less likely than p, and the less likely the more reliable the forecasts are (forecast_table.h).
 *
 * A layer's estimates change once a pass has been through it. They are updated when the pass goes
 * on to the next layer: O(experts of the layer). Each layer keeps its resident experts in a heap by
 * p, so choosing a victim costs O(layers). */
#include <math.h>
#include <stdlib.h>

#include "cache/forecast_table.h"
#include "cache/key_heap.h"
#include "cache/policies.h"
#include "cache/policy_ranked.h"
#include "runtime/base/alloc.h"
#include "runtime/base/moe_assert.h"

/* These values were chosen on the recorded trace of OLMoE and on synthetic traces
 * (bench/results/cache-policies.md). */
#define FAST_HALF_LIFE 1.0  /* rows */
#define SLOW_HALF_LIFE 32.0 /* rows */
#define FAST_SHARE     0.4  /* weight of the fast mean in p */
#define PRIOR_ROWS     1.0  /* how many rows of evidence "all experts alike" counts as */
#define HOTNESS_ROWS   16.0 /* how many rows of evidence a calibration counts as */
#define LEAST_P        1e-4

typedef struct lfru_state {
    uint32_t n_layer;
    uint32_t n_expert;
    double n_expert_used;
    double prior_rows;
    moe_key_heap *heaps; /* [n_layer] a layer's resident experts, by p */
    double *fast;        /* [n_keys] mean of uses per row */
    double *slow;        /* [n_keys] fading sum of uses per row */
    double *prior;       /* [n_keys] p before any use is seen */
    double *p;           /* [n_keys] */
    double *slow_rows;   /* [n_layer] fading count of the rows in slow */
    uint32_t *rows;      /* [n_expert] of the current layer, in this pass */
    uint32_t layer;      /* the layer at work */
    uint64_t pass;
    uint64_t n_uses; /* breaks ties by recency */
    moe_forecast_table ahead;
    uint64_t *next_pass; /* [n_layer] the pass that the layer's next access belongs to */
} lfru_state;

static void lfru_destroy(void *state)
{
    lfru_state *lfru = state;
    for (uint32_t layer = 0; lfru->heaps != NULL && layer < lfru->n_layer; layer++) {
        moe_key_heap_release(&lfru->heaps[layer]);
    }
    free(lfru->heaps);
    free(lfru->fast);
    free(lfru->slow);
    free(lfru->prior);
    free(lfru->p);
    free(lfru->slow_rows);
    free(lfru->rows);
    free(lfru->next_pass);
    moe_forecast_table_release(&lfru->ahead);
    free(lfru);
}

static bool lfru_allocate(lfru_state *lfru, uint32_t n_keys)
{
    lfru->heaps = moe_calloc(lfru->n_layer, sizeof *lfru->heaps);
    lfru->fast = moe_calloc(n_keys, sizeof *lfru->fast);
    lfru->slow = moe_calloc(n_keys, sizeof *lfru->slow);
    lfru->prior = moe_calloc(n_keys, sizeof *lfru->prior);
    lfru->p = moe_calloc(n_keys, sizeof *lfru->p);
    lfru->slow_rows = moe_calloc(lfru->n_layer, sizeof *lfru->slow_rows);
    lfru->rows = moe_calloc(lfru->n_expert, sizeof *lfru->rows);
    lfru->next_pass = moe_calloc(lfru->n_layer, sizeof *lfru->next_pass);
    if (lfru->heaps == NULL || lfru->fast == NULL || lfru->slow == NULL || lfru->prior == NULL ||
        lfru->p == NULL || lfru->slow_rows == NULL || lfru->rows == NULL ||
        lfru->next_pass == NULL) {
        return false;
    }
    for (uint32_t layer = 0; layer < lfru->n_layer; layer++) {
        if (!moe_key_heap_init(&lfru->heaps[layer], lfru->n_expert)) {
            return false;
        }
    }
    return true;
}

static void *lfru_create(const moe_policy_config *config)
{
    lfru_state *lfru = moe_calloc(1, sizeof *lfru);
    if (lfru == NULL) {
        return NULL;
    }
    lfru->n_layer = config->n_layer;
    lfru->n_expert = config->n_expert;
    lfru->n_expert_used = config->n_expert_used > 0 ? config->n_expert_used : 1;
    lfru->pass = UINT64_MAX; /* no pass yet: the first access begins a layer */
    moe_forecast_table_init(&lfru->ahead, config->n_layer, config->n_expert);
    if (!lfru_allocate(lfru, config->n_keys)) {
        lfru_destroy(lfru);
        return NULL;
    }
    lfru->prior_rows = config->hotness != NULL ? HOTNESS_ROWS : PRIOR_ROWS;
    for (uint32_t key = 0; key < config->n_keys; key++) {
        double share =
            config->hotness != NULL ? (double)config->hotness[key] : 1.0 / (double)config->n_expert;
        lfru->prior[key] = fmin(share * lfru->n_expert_used, 1.0);
        lfru->p[key] = fmax(lfru->prior[key], LEAST_P);
    }
    return lfru;
}

/* Returns the value by which a layer's keys are ordered: p, or, with forecasts, the p that would
 * give the same expected wait. */
static double rank_of(const lfru_state *lfru, uint32_t key)
{
    double p = lfru->p[key];
    if (lfru->ahead.n_passes == 0) {
        return p;
    }
    uint64_t next_pass = lfru->next_pass[key / lfru->n_expert];
    return 1 / (1 + moe_forecast_table_wait(&lfru->ahead, key, next_pass, p));
}

/* Reorders the heap of a layer's resident experts. */
static void rank_layer(lfru_state *lfru, uint32_t layer)
{
    moe_key_heap *heap = &lfru->heaps[layer];
    for (uint32_t e = 0; e < lfru->n_expert; e++) {
        if (moe_key_heap_contains(heap, e)) {
            moe_key_heap_set(heap, e, rank_of(lfru, layer * lfru->n_expert + e), heap->order[e]);
        }
    }
}

/* Updates the estimates of the layer that the pass has just left. A pass counts as as many rows of
 * evidence as it has. */
static void update_estimates(lfru_state *lfru)
{
    uint32_t first = lfru->layer * lfru->n_expert;
    double n_rows = 0;
    for (uint32_t e = 0; e < lfru->n_expert; e++) {
        n_rows += lfru->rows[e];
    }
    n_rows /= lfru->n_expert_used;
    if (n_rows <= 0) {
        return;
    }
    n_rows = fmax(n_rows, 1.0);
    double fast_kept = exp2(-n_rows / FAST_HALF_LIFE);
    double slow_kept = exp2(-n_rows / SLOW_HALF_LIFE);
    double slow_new = (1.0 - slow_kept) / (1.0 - exp2(-1.0 / SLOW_HALF_LIFE));
    double *slow_rows = &lfru->slow_rows[lfru->layer];
    *slow_rows = *slow_rows * slow_kept + slow_new;
    for (uint32_t e = 0; e < lfru->n_expert; e++) {
        uint32_t key = first + e;
        double uses = fmin(lfru->rows[e] / n_rows, 1.0);
        lfru->rows[e] = 0;
        lfru->fast[key] = lfru->fast[key] * fast_kept + uses * (1.0 - fast_kept);
        lfru->slow[key] = lfru->slow[key] * slow_kept + uses * slow_new;
        double slow = (lfru->slow[key] + lfru->prior[key] * lfru->prior_rows) /
                      (*slow_rows + lfru->prior_rows);
        double p = FAST_SHARE * lfru->fast[key] + (1.0 - FAST_SHARE) * slow;
        lfru->p[key] = fmin(fmax(p, LEAST_P), 1.0);
        MOE_ASSERT(lfru->p[key] >= LEAST_P && lfru->p[key] <= 1.0);
    }
    rank_layer(lfru, lfru->layer);
}

/* Call when a pass reaches a layer for the first time. Later accesses to that layer belong to the
 * next pass. */
static void begin_layer(lfru_state *lfru, uint32_t layer, uint64_t pass)
{
    lfru->layer = layer;
    lfru->pass = pass;
    lfru->next_pass[layer] = pass + 1;
    if (lfru->ahead.n_passes > 0) {
        rank_layer(lfru, layer);
    }
}

static void lfru_use(void *state, uint32_t key, const moe_policy_access *access)
{
    lfru_state *lfru = state;
    uint32_t layer = key / lfru->n_expert;
    uint32_t expert = key % lfru->n_expert;
    /* A prefetched expert keeps this until its layer settles: the prefetch knows more than the
     * past. */
    double rank = 1.0;
    MOE_ASSERT(layer < lfru->n_layer);
    if (access->n_rows > 0) {
        if (layer != lfru->layer || access->pass != lfru->pass) {
            update_estimates(lfru);
            begin_layer(lfru, layer, access->pass);
        }
        lfru->rows[expert] += access->n_rows;
        rank = rank_of(lfru, key);
    }
    moe_key_heap_set(&lfru->heaps[layer], expert, rank, ++lfru->n_uses);
}

static void lfru_evict(void *state, uint32_t key)
{
    lfru_state *lfru = state;
    moe_key_heap_remove(&lfru->heaps[key / lfru->n_expert], key % lfru->n_expert);
}

/* Translates a question about an expert's number in a layer's heap into one about a key of the
 * cache: whether it may be evicted. */
typedef struct layer_evictable {
    moe_policy_evictable evictable;
    void *context;
    uint32_t first_key;
} layer_evictable;

static bool expert_evictable(void *context, uint32_t expert)
{
    const layer_evictable *layer = context;
    return layer->evictable(layer->context, layer->first_key + expert);
}

static uint32_t lfru_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                            void *context)
{
    lfru_state *lfru = state;
    uint32_t n_layer = lfru->n_layer;
    uint32_t victim = MOE_KEY_NONE;
    double longest = -1.0;
    (void)for_key;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        layer_evictable of_layer = {evictable, context, layer * lfru->n_expert};
        moe_key_heap *heap = &lfru->heaps[layer];
        uint32_t expert = moe_key_heap_first_evictable(heap, expert_evictable, &of_layer);
        if (expert == MOE_KEY_NONE) {
            continue;
        }
        uint32_t distance = (layer + n_layer - lfru->layer - 1) % n_layer + 1;
        MOE_ASSERT(distance >= 1 && distance <= n_layer);
        double wait = distance + n_layer * (1.0 / heap->priority[expert] - 1.0);
        if (wait > longest) {
            longest = wait;
            victim = of_layer.first_key + expert;
        }
    }
    return victim;
}

static void lfru_lookahead(void *state, uint64_t first_pass, const moe_policy_forecast *uses,
                           size_t n)
{
    lfru_state *lfru = state;
    update_estimates(lfru);
    moe_forecast_table_set(&lfru->ahead, first_pass, uses, n);
    for (uint32_t layer = 0; layer < lfru->n_layer; layer++) {
        rank_layer(lfru, layer);
    }
}

const moe_policy moe_policy_lfru = {
    .abi = MOE_POLICY_ABI,
    .name = "lfru",
    .create = lfru_create,
    .destroy = lfru_destroy,
    .hit = lfru_use,
    .insert = lfru_use,
    .evict = lfru_evict,
    .victim = lfru_victim,
    .end_pass = moe_policy_ignore_pass,
    .lookahead = lfru_lookahead,
};
