/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_owners.h"

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

bool moe_workers_take_over(void *user, uint32_t layer, uint32_t expert)
{
    const moe_workers *w = user;
    bool any = false;
    for (uint32_t i = 0; i < w->links.n && !any; i++) {
        any = moe_worker_has(&w->links, &w->links.list[i], layer, expert);
    }
    return any && (w->all || w->kept < 0.5);
}
