/* SPDX-License-Identifier: MIT */
/* Decides which experts each worker should have in memory, by how often an engine asked for them
 * and how fast the workers are. A layer waits for its slowest worker, so each layer's experts are
 * divided by themselves: a worker that takes twice as long gets half as much of what is asked for.
 * Where there is room left, the most wanted experts come to further workers as well. */
#ifndef MOE_WORKERS_WORKER_BALANCE_H
#define MOE_WORKERS_WORKER_BALANCE_H

#include <stdint.h>

#include <moe/status.h>

#include "runtime/workers/worker_choice.h"

typedef struct moe_worker_of_balance {
    const uint8_t *has;  /* bits of the experts that it has now: layer * n_expert + expert */
    const uint8_t *able; /* bits of those that its file has */
    uint32_t room;       /* experts that its memory has room for */
    double cost;         /* time that it takes for an expert, in any unit; > 0 */
} moe_worker_of_balance;

/* Sets bits [n_workers] of the experts that each worker should have. heat: [n_layer * n_expert],
 * how often each expert was asked for. An expert that no worker can have, or that no worker has
 * room for, is with none. */
int moe_worker_balance(const float *heat, uint32_t n_layer, uint32_t n_expert,
                       const moe_worker_of_balance *workers, uint32_t n_workers,
                       uint8_t *const *bits, moe_error *err);

#endif
