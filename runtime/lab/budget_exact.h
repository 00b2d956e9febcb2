/* SPDX-License-Identifier: MIT */
/* For analysis of the expert budget: every layer of a lossy pass is first computed as the router
 * chose, so that the oracle can rank its experts and the error of its output can be measured. This
 * costs more than a budget saves, and takes host memory beyond the plan. */
#ifndef MOE_LAB_BUDGET_EXACT_H
#define MOE_LAB_BUDGET_EXACT_H

#include "runtime/pass/pass_hooks.h"
#include "runtime/lossy/expert_budget.h"

typedef struct moe_budget_exact {
    moe_pass_hook hook;
    moe_expert_budget *budget;
    bool ranks;        /* whether the oracle's list is wanted */
    uint32_t max_rows; /* rows that there is memory for */
    float *rank_out;   /* [rows * n_used][n_expert_in], when it ranks */
    uint32_t *chosen;  /* [rows][n_used]: the choice and its weights, best first */
    float *weights;
    float *natural; /* [rows][n_embd]: the layer's exact output */
    float *edited;  /* [rows][n_embd] */
    double *gram;   /* [rows][n_used][n_used] */
    double *gain;   /* [n_expert] */
    uint32_t *list; /* [n_expert] of the current layer */
    uint32_t n_list;
    double error_sum; /* of layers' relative square errors */
    uint64_t n_layers;
} moe_budget_exact;

/* Adds a hook to the runner. From then on the runner computes each layer of a lossy pass twice, and
 * a budget whose experts the oracle ranks gets each layer's list. budget must outlive the passes.
 */
int moe_budget_exact_open(moe_budget_exact **out, moe_expert_budget *budget, moe_runner *runner,
                          moe_error *err);
/* Frees it. No pass may be running. */
void moe_budget_exact_close(moe_budget_exact **exact);
/* Returns the mean of the layers' relative square errors; 0 before the first. exact may be NULL. */
double moe_budget_exact_error(const moe_budget_exact *exact);

#endif
