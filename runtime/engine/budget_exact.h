/* SPDX-License-Identifier: MIT */
/* For analysis of the expert budget: every layer of a lossy pass is first computed as the router
 * chose, so that the oracle can rank its experts and the error of its output can be told. All that
 * a budget saves is lost by it, and host memory beyond the plan is taken. */
#ifndef MOE_ENGINE_BUDGET_EXACT_H
#define MOE_ENGINE_BUDGET_EXACT_H

#include "runtime/engine/pass.h"

typedef struct moe_budget_exact {
    bool ranks;        /* the oracle's list is wanted */
    uint32_t max_rows; /* that there is memory for */
    float *rank_out;   /* [rows * n_used][n_embd], when it ranks */
    float *natural;    /* [rows][n_embd]: the layer's exact output */
    float *edited;     /* [rows][n_embd] */
    double *gram;      /* [rows][n_used][n_used] */
    double *gain;      /* [n_expert] */
    uint32_t *list;    /* [n_expert] of the layer at work */
    uint32_t n_list;
    double error_sum; /* of layers' relative square errors */
    uint64_t n_layers;
} moe_budget_exact;

void moe_budget_exact_free(moe_budget_exact *exact);
/* Whether the layers of this pass are to be computed twice. */
bool moe_budget_exact_wanted(const struct moe_engine *engine, const moe_pass *pass);
/* The layer's natural experts have been computed: rank_out and branch hold what they gave. Before
 * the routes are edited. */
int moe_budget_exact_natural(struct moe_engine *engine, uint32_t n_rows, moe_error *err);
/* The edited ones have: branch is compared. */
int moe_budget_exact_compare(struct moe_engine *engine, uint32_t n_rows, moe_error *err);

#endif
