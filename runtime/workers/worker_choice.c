/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_choice.h"

#include <string.h>

#include "runtime/base/moe_assert.h"

/* One decision in this many also gives work to a side (here or workers) that would stay idle. So
 * its time stays known when loads change, and the cache follows the text. */
#define TRY_EVERY 32u

static uint32_t class_of(uint32_t n_pass_rows)
{
    static const uint32_t most[] = {1, 8, 64, MOE_WORKER_BLOCK_ROWS - 1};
    uint32_t class = 0;
    while (class < sizeof most / sizeof most[0] && n_pass_rows > most[class]) {
        class ++;
    }
    return class;
}

void moe_worker_costs_note(moe_worker_costs *costs, uint32_t n_pass_rows, uint32_t n_experts,
                           uint64_t ns)
{
    moe_place_note(&costs->of_pass[class_of(n_pass_rows)], 1, n_experts, ns);
}

double moe_worker_costs_ns(const moe_worker_costs *costs, uint32_t n_pass_rows, uint32_t n_experts)
{
    return moe_place_cost_ns(&costs->of_pass[class_of(n_pass_rows)], n_experts);
}

static double time_at(const moe_worker_layer *layer, uint32_t worker, uint32_t n_experts)
{
    return n_experts > 0
               ? moe_worker_costs_ns(layer->workers[worker], layer->n_pass_rows, n_experts)
               : 0.0;
}

/* Gives each expert to the worker that would be done with it first. counts: [n_workers] */
static void give_all(const moe_worker_layer *layer, uint8_t *owners, uint32_t *counts)
{
    for (uint32_t i = 0; i < layer->n; i++) {
        double best_ns = 0.0;
        owners[i] = MOE_WORKER_HERE;
        for (uint32_t w = 0; w < layer->n_workers; w++) {
            double ns = time_at(layer, w, counts[w] + 1);
            if ((layer->holders[i] >> w & 1) != 0 &&
                (owners[i] == MOE_WORKER_HERE || ns < best_ns)) {
                owners[i] = (uint8_t)w;
                best_ns = ns;
            }
        }
        MOE_ASSERT(owners[i] != MOE_WORKER_HERE);
        counts[owners[i]]++;
    }
}

static double slowest(const moe_worker_layer *layer, const uint32_t *counts)
{
    double most = 0.0;
    for (uint32_t w = 0; w < layer->n_workers; w++) {
        double ns = time_at(layer, w, counts[w]);
        most = ns > most ? ns : most;
    }
    return most;
}

/* Returns how many of the experts this engine keeps. */
static uint32_t choose_stays(const moe_worker_choice *choice, const moe_worker_layer *layer,
                             const uint8_t *owners, uint32_t *counts)
{
    uint32_t best = 0;
    double best_ns = 0.0;
    for (uint32_t n = 0; n <= layer->n; n++) {
        double here_ns =
            moe_worker_costs_ns(&choice->here, layer->n_pass_rows, layer->n_read + n + 1);
        double away_ns = slowest(layer, counts);
        double ns = here_ns > away_ns ? here_ns : away_ns;
        if (n == 0 || ns < best_ns) {
            best = n;
            best_ns = ns;
        }
        if (n < layer->n) {
            counts[owners[n]]--;
        }
    }
    return best;
}

void moe_worker_choose(moe_worker_choice *choice, const moe_worker_layer *layer, bool all,
                       uint8_t *owners)
{
    uint32_t counts[MOE_MOST_WORKERS] = {0};
    give_all(layer, owners, counts);
    if (all || layer->n == 0) {
        return;
    }
    uint32_t n = choose_stays(choice, layer, owners, counts);
    bool tries_here = choice->n_decisions % TRY_EVERY == 0;
    bool tries_away = choice->n_decisions % TRY_EVERY == TRY_EVERY / 2;
    choice->n_decisions++;
    n = n == 0 && tries_here ? 1 : n == layer->n && tries_away ? n - 1 : n;
    memset(owners, MOE_WORKER_HERE, n);
}
