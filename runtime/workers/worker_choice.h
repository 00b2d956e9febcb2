/* SPDX-License-Identifier: MIT */
/* Decides who computes a layer's missing experts, so that this engine and its workers are done at
 * about the same time, by the times that layers have taken so far. It changes where an expert is
 * computed, never the result. */
#ifndef MOE_WORKERS_WORKER_CHOICE_H
#define MOE_WORKERS_WORKER_CHOICE_H

#include <stdbool.h>

#include "runtime/place/place_times.h"

#define MOE_WORKER_HERE  UINT8_MAX
#define MOE_MOST_WORKERS 32u

/* What a number of experts together take, in passes of one row, of a few, and of many. */
typedef struct moe_worker_costs {
    moe_place_times of_pass[4];
} moe_worker_costs;

void moe_worker_costs_note(moe_worker_costs *costs, uint32_t n_pass_rows, uint32_t n_experts,
                           uint64_t ns);
/* 0: nothing is known. */
double moe_worker_costs_ns(const moe_worker_costs *costs, uint32_t n_pass_rows, uint32_t n_experts);

typedef struct moe_worker_choice {
    /* What the layer takes here, by the number of its experts that are read, plus 1. */
    moe_worker_costs here;
    uint64_t n_decisions;
} moe_worker_choice;

typedef struct moe_worker_layer {
    uint32_t n_pass_rows;
    uint32_t n;              /* experts that a worker has and this engine lacks */
    const uint32_t *holders; /* [n] a bit for each worker: those that have the expert */
    const moe_worker_costs *const *workers; /* [n_workers] */
    uint32_t n_workers;
    uint32_t n_read; /* further experts that only this engine can compute, and has to read */
} moe_worker_layer;

/* Sets owners [n]: workers' numbers, or MOE_WORKER_HERE. The first experts of the list are those
 * that stay. */
void moe_worker_choose(moe_worker_choice *choice, const moe_worker_layer *layer, bool all,
                       uint8_t *owners);

#endif
