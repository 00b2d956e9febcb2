/* SPDX-License-Identifier: MIT */
/* The plan of one layer in one pass: the distinct experts that its rows chose, and for each expert
 * the rows that chose it. Every expert is listed once, so it is fetched once and its weights are
 * read once. */
#ifndef MOE_OFFLOAD_LAYER_PLAN_H
#define MOE_OFFLOAD_LAYER_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>

/* Marks a rank without an expert: it adds no row to the plan, and its weight must be 0. */
#define MOE_PLAN_NO_EXPERT UINT32_MAX

typedef struct moe_layer_plan {
    uint32_t n_experts; /* distinct */
    uint32_t *experts;  /* [n_experts], ascending */
    uint32_t *first;    /* [n_experts + 1]: where an expert's rows begin in the two lists below */
    uint32_t *rows;     /* [n_rows * n_used]: the row's number */
    uint32_t *ranked_slots; /* [n_rows * n_used]: row * n_used + rank */
    /* Sizes and scratch, set at init. */
    uint32_t max_slots;
    uint32_t n_expert_all;
    uint32_t *position; /* [n_expert_all] */
} moe_layer_plan;

int moe_layer_plan_init(moe_layer_plan *plan, uint32_t max_rows, uint32_t n_used,
                        uint32_t n_expert_all, moe_error *err);
void moe_layer_plan_free(moe_layer_plan *plan);

/* chosen: [n_rows][n_used]; each is an expert, distinct within a row, or MOE_PLAN_NO_EXPERT. */
void moe_layer_plan_build(moe_layer_plan *plan, const uint32_t *chosen, uint32_t n_rows,
                          uint32_t n_used);

#endif
