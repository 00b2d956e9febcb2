/* SPDX-License-Identifier: MIT */
/* Who computes the experts of a layer, or of a block. */
#ifndef MOE_WORKERS_WORKER_OWNERS_H
#define MOE_WORKERS_WORKER_OWNERS_H

#include "runtime/workers/worker_state.h"

/* Gives each missing expert that some row chose (w->resident, w->n_rows) an owner (w->owner). Sets
 * w->n_read. n_pass_rows: see worker_choice.h. Returns whether a worker computes any. */
bool moe_workers_choose(moe_workers *w, uint32_t layer, uint32_t n_pass_rows);
/* Whether a worker that answers computes the expert. */
bool moe_workers_have(const moe_workers *w, uint32_t layer, uint32_t expert);
/* The moe_elsewhere_fn of the workers (user): whether a worker will probably compute the expert, so
 * that this engine need not read it ahead. */
bool moe_workers_take_over(void *user, uint32_t layer, uint32_t expert);

/* Tells workers which experts to have from now on, if it is time to divide them anew. */
void moe_workers_rebalance(moe_workers *w);

#endif
