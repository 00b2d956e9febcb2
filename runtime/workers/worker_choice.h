/* SPDX-License-Identifier: MIT */
/* Decides who computes a layer's missing experts, by the times that layers have taken so far, so
 * that this engine and its workers are done at about the same time. The choice changes where an
 * expert is computed, never the result. */
#ifndef MOE_WORKERS_WORKER_CHOICE_H
#define MOE_WORKERS_WORKER_CHOICE_H

#include <stdbool.h>

#include "runtime/place/place_times.h"

#define MOE_WORKER_HERE  UINT8_MAX
#define MOE_MOST_WORKERS 32u

/* The number of a pass's rows that stands for a block of a panel (runtime/pass/panel_block.h). */
#define MOE_WORKER_BLOCK_ROWS UINT32_MAX

/* The time that n experts together take, for passes of one row, of up to 8, up to 64, of more, and
 * for blocks. */
typedef struct moe_worker_costs {
    moe_place_times of_pass[5];
} moe_worker_costs;

void moe_worker_costs_note(moe_worker_costs *costs, uint32_t n_pass_rows, uint32_t n_experts,
                           uint64_t ns);
/* Estimates the time; 0: nothing is known. */
double moe_worker_costs_ns(const moe_worker_costs *costs, uint32_t n_pass_rows, uint32_t n_experts);

typedef struct moe_worker_choice {
    /* The time of a layer in this engine, by the number of experts that it reads, plus 1. */
    moe_worker_costs here;
    uint64_t n_decisions;
} moe_worker_choice;

typedef struct moe_worker_layer {
    uint32_t n_pass_rows;
    uint32_t n;                             /* missing experts that some worker has */
    const uint32_t *holders;                /* [n] bits of the workers that have the expert */
    const moe_worker_costs *const *workers; /* [n_workers] */
    uint32_t n_workers;
    uint32_t n_read; /* further missing experts, which only this engine can compute */
} moe_worker_layer;

/* Sets owners [n]: workers' numbers, or MOE_WORKER_HERE. This engine keeps experts from the front
 * of the list. all: gives every expert to a worker. */
void moe_worker_choose(moe_worker_choice *choice, const moe_worker_layer *layer, bool all,
                       uint8_t *owners);

#endif
