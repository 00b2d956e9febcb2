/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_balance.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* An expert leaves its worker only if another one would have this much less to do. */
#define STAYS 0.8
/* What an expert that was not asked for counts, so that these are divided, too. */
#define LEAST_HEAT 1e-3

typedef struct hot_expert {
    uint32_t key;
    float heat;
} hot_expert;

typedef struct balance {
    const moe_worker_of_balance *workers;
    uint8_t *const *bits;
    hot_expert *list; /* [n]: the hottest first */
    double *load;     /* [n_workers][n_layer]: time that is asked of a worker */
    uint32_t n, n_layer, n_expert, n_workers;
    uint32_t room[MOE_MOST_WORKERS];
} balance;

static bool is_set(const uint8_t *bits, uint32_t key)
{
    return (bits[key / 8] >> key % 8 & 1) != 0;
}

static int compare(const void *a, const void *b)
{
    const hot_expert *x = a, *y = b;
    return x->heat != y->heat ? (x->heat < y->heat) - (x->heat > y->heat)
                              : (x->key > y->key) - (x->key < y->key);
}

static double *load_of(const balance *b, uint32_t worker, uint32_t key)
{
    return &b->load[(size_t)worker * b->n_layer + key / b->n_expert];
}

static double time_of(const balance *b, uint32_t worker, const hot_expert *e)
{
    return (e->heat + LEAST_HEAT) * b->workers[worker].cost;
}

/* The worker that should have the expert, of those that have room; n_workers: none. */
static uint32_t best_for(const balance *b, const hot_expert *e)
{
    uint32_t best = b->n_workers;
    double best_s = 0.0;
    for (uint32_t w = 0; w < b->n_workers; w++) {
        if (b->room[w] == 0 || is_set(b->bits[w], e->key) || !is_set(b->workers[w].able, e->key)) {
            continue;
        }
        double s = *load_of(b, w, e->key) + time_of(b, w, e);
        s *= is_set(b->workers[w].has, e->key) ? STAYS : 1.0;
        if (best == b->n_workers || s < best_s) {
            best = w;
            best_s = s;
        }
    }
    return best;
}

static void give(balance *b, uint32_t worker, const hot_expert *e, double share)
{
    b->bits[worker][e->key / 8] |= (uint8_t)(1u << e->key % 8);
    b->room[worker]--;
    *load_of(b, worker, e->key) += share * time_of(b, worker, e);
}

/* Gives the hottest experts to one worker more: round 0 to the first, and so on. What is asked for
 * an expert is then divided, which this counts for the new worker alone. */
static void give_round(balance *b, uint32_t round)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const hot_expert *e = &b->list[i];
        const uint32_t worker = round == 0 || e->heat > 0 ? best_for(b, e) : b->n_workers;
        if (worker < b->n_workers) {
            give(b, worker, e, 1.0 / (round + 1));
        }
    }
}

int moe_worker_balance(const float *heat, uint32_t n_layer, uint32_t n_expert,
                       const moe_worker_of_balance *workers, uint32_t n_workers,
                       uint8_t *const *bits, moe_error *err)
{
    const uint32_t n = n_layer * n_expert;
    balance b = {.workers = workers,
                 .bits = bits,
                 .list = moe_calloc(n, sizeof *b.list),
                 .load = moe_calloc((size_t)n_workers * n_layer, sizeof *b.load),
                 .n = n,
                 .n_layer = n_layer,
                 .n_expert = n_expert,
                 .n_workers = n_workers};
    if (b.list == NULL || b.load == NULL) {
        free(b.list);
        free(b.load);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to divide experts among workers");
    }
    for (uint32_t w = 0; w < n_workers; w++) {
        memset(bits[w], 0, n / 8 + 1);
        b.room[w] = workers[w].room;
    }
    for (uint32_t key = 0; key < n; key++) {
        b.list[key] = (hot_expert){key, heat[key]};
    }
    qsort(b.list, n, sizeof *b.list, compare);
    for (uint32_t round = 0; round < n_workers; round++) {
        give_round(&b, round);
    }
    free(b.list);
    free(b.load);
    return MOE_OK;
}
