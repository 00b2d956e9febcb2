/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_owners.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/workers/worker_balance.h"

#define KEPT_DECISIONS 16.0 /* over which moe_workers.kept is an average */

/* Lists the missing experts that a worker has, those with most rows first. */
static moe_worker_layer list_missing(moe_workers *w, uint32_t layer, uint32_t n_pass_rows)
{
    moe_worker_layer list = {.n_pass_rows = n_pass_rows,
                             .holders = w->holders,
                             .workers = w->costs,
                             .n_workers = w->links.n};
    for (uint32_t e = 0; e < w->runner->config->n_expert; e++) {
        uint32_t holders = 0;
        w->owner[e] = MOE_WORKER_HERE;
        if (w->n_rows[e] == 0 || w->resident[e]) {
            continue;
        }
        for (uint32_t i = 0; i < w->links.n; i++) {
            bool has = moe_worker_has(&w->links, &w->links.list[i], layer, e);
            holders |= (uint32_t)has << i;
        }
        if (w->heat != NULL) {
            w->heat[(size_t)layer * w->runner->config->n_expert + e] += 1.0f;
        }
        if (holders == 0) {
            list.n_read++;
            continue;
        }
        uint32_t at = list.n++;
        for (; at > 0 && w->n_rows[w->missing[at - 1]] < w->n_rows[e]; at--) {
            w->missing[at] = w->missing[at - 1];
            w->holders[at] = w->holders[at - 1];
        }
        w->missing[at] = e;
        w->holders[at] = holders;
    }
    return list;
}

bool moe_workers_choose(moe_workers *w, uint32_t layer, uint32_t n_pass_rows)
{
    const moe_worker_layer list = list_missing(w, layer, n_pass_rows);
    uint32_t n_kept = 0;
    moe_worker_choose(&w->choice, &list, w->all, w->owners);
    for (uint32_t i = 0; i < list.n; i++) {
        w->owner[w->missing[i]] = w->owners[i];
        n_kept += w->owners[i] == MOE_WORKER_HERE;
    }
    w->n_read = list.n_read + n_kept;
    if (list.n > 0) {
        w->kept += ((double)n_kept / list.n - w->kept) / KEPT_DECISIONS;
    }
    return n_kept < list.n;
}

bool moe_workers_have(const moe_workers *w, uint32_t layer, uint32_t expert)
{
    bool any = false;
    for (uint32_t i = 0; i < w->links.n && !any; i++) {
        any = moe_worker_has(&w->links, &w->links.list[i], layer, expert);
    }
    return any;
}

bool moe_workers_take_over(void *user, uint32_t layer, uint32_t expert)
{
    const moe_workers *w = user;
    return moe_workers_have(w, layer, expert) && (w->all || w->kept < 0.5);
}

/* ---- Who has which expert ---- */

static uint32_t count_new(const uint8_t *bits, const uint8_t *old, size_t n_bytes)
{
    uint32_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        n += (uint32_t)__builtin_popcount(bits[i] & ~(unsigned)old[i]);
    }
    return n;
}

/* Sends each worker that is ready its list, if it changes. workers: their numbers. */
static void send_lists(moe_workers *w, uint8_t *const *bits, const uint32_t *workers, uint32_t n)
{
    const size_t n_bytes = moe_expert_bit_bytes(&w->links.identity);
    for (uint32_t i = 0; i < n; i++) {
        const moe_worker_link *link = &w->links.list[workers[i]];
        if (memcmp(bits[i], link->experts, n_bytes) != 0) {
            w->stats.n_moves += count_new(bits[i], link->experts, n_bytes);
            moe_message_send(w->links.wire, link->peer, MOE_MESSAGE_HOLD, 0, bits[i], n_bytes);
        }
    }
}

/* The time that a worker takes for two experts of a token, by what was measured; at first that of a
 * worker for which it is known. */
static double cost_of(const moe_workers *w, uint32_t worker)
{
    double known = moe_worker_costs_ns(&w->links.list[worker].costs, 1, 2);
    for (uint32_t i = 0; i < w->links.n && known <= 0.0; i++) {
        known = moe_worker_costs_ns(&w->links.list[i].costs, 1, 2);
    }
    return known > 0.0 ? known : 1.0;
}

static void divide(moe_workers *w)
{
    const moe_worker_identity *m = &w->links.identity;
    moe_worker_of_balance states[MOE_MOST_WORKERS];
    uint8_t *bits[MOE_MOST_WORKERS];
    uint32_t workers[MOE_MOST_WORKERS], n = 0;
    uint8_t *all = moe_calloc((size_t)m->n_layer * m->n_expert / 8 + 1, MOE_MOST_WORKERS);
    for (uint32_t i = 0; i < w->links.n && all != NULL; i++) {
        const moe_worker_link *link = &w->links.list[i];
        if (link->state == MOE_WORKER_READY) {
            states[n] = (moe_worker_of_balance){.has = link->experts,
                                                .able = link->able,
                                                .room = link->n_slots,
                                                .cost = cost_of(w, i)};
            bits[n] = all + n * ((size_t)m->n_layer * m->n_expert / 8 + 1);
            workers[n++] = i;
        }
    }
    if (n > 0 &&
        moe_worker_balance(w->heat, m->n_layer, m->n_expert, states, n, bits, NULL) == MOE_OK) {
        send_lists(w, bits, workers, n);
    }
    free(all);
}

void moe_workers_rebalance(moe_workers *w)
{
    const size_t n = (size_t)w->links.identity.n_layer * w->links.identity.n_expert;
    if (w->rebalance == 0 || ++w->n_passes % w->rebalance != 0) {
        return;
    }
    divide(w);
    for (size_t i = 0; i < n; i++) {
        w->heat[i] *= 0.5f; /* what was asked for lately counts more */
    }
}
