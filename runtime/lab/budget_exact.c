/* SPDX-License-Identifier: MIT */
#include "runtime/lab/budget_exact.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"
#include "runtime/lab/budget_oracle.h"

static void free_rows(moe_budget_exact *x)
{
    free(x->rank_out);
    free(x->chosen);
    free(x->weights);
    free(x->natural);
    free(x->edited);
    free(x->gram);
    free(x->gain);
    free(x->list);
    x->rank_out = x->natural = x->edited = x->weights = NULL;
    x->chosen = NULL;
    x->gram = x->gain = NULL;
    x->list = NULL;
    x->max_rows = 0;
}

void moe_budget_exact_close(moe_budget_exact **exact)
{
    if (*exact != NULL) {
        free_rows(*exact);
        free(*exact);
        *exact = NULL;
    }
}

double moe_budget_exact_error(const moe_budget_exact *x)
{
    return x != NULL && x->n_layers > 0 ? x->error_sum / (double)x->n_layers : 0.0;
}

static int reserve(moe_budget_exact *x, const moe_model_config *c, uint32_t n_rows, moe_error *err)
{
    if (n_rows <= x->max_rows) {
        return MOE_OK;
    }
    free_rows(x);
    size_t slots = x->ranks ? (size_t)n_rows * c->n_expert_used : 1;
    size_t row = c->n_embd * sizeof(float);
    x->rank_out = moe_calloc(slots, c->n_expert_in * sizeof(float));
    x->gram = moe_calloc(slots, c->n_expert_used * sizeof *x->gram);
    x->gain = moe_calloc(c->n_expert, sizeof *x->gain);
    x->list = moe_calloc(c->n_expert, sizeof *x->list);
    x->chosen = moe_calloc((size_t)n_rows * c->n_expert_used, sizeof *x->chosen);
    x->weights = moe_calloc((size_t)n_rows * c->n_expert_used, sizeof *x->weights);
    x->natural = moe_calloc(n_rows, row);
    x->edited = moe_calloc(n_rows, row);
    if (x->rank_out == NULL || x->gram == NULL || x->gain == NULL || x->list == NULL ||
        x->chosen == NULL || x->weights == NULL || x->natural == NULL || x->edited == NULL) {
        free_rows(x);
        return moe_fail(err, MOE_ERR_MEMORY,
                        "no memory for the exact outputs of %u rows that an expert budget is "
                        "measured by",
                        n_rows);
    }
    x->max_rows = n_rows;
    return MOE_OK;
}

static int rank_experts(moe_budget_exact *x, moe_runner *runner, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_pass_buffers *b = &runner->buffers;
    size_t bytes = (size_t)n_rows * c->n_expert_used * c->n_expert_in * sizeof(float);
    MOE_TRY(runner->device->ops->download(runner->device, x->rank_out,
                                          b->values[MOE_VALUE_RANK_OUT], bytes, err));
    moe_route_edit edit = {.n_rows = n_rows,
                           .n_expert = c->n_expert,
                           .n_used = c->n_expert_used,
                           .experts = b->chosen,
                           .weights = b->chosen_weights};
    uint32_t most = x->budget->n_experts;
    x->n_list = moe_budget_oracle_list(&edit, x->rank_out, c->n_expert_in, x->gram, x->gain,
                                       x->list, most < c->n_expert ? most : c->n_expert);
    x->budget->listed = x->list;
    x->budget->n_listed = x->n_list;
    return MOE_OK;
}

/* Computes the layer as the router chose, before the choices are edited. Editors then find them
 * best first again. */
static int compute_naturally(void *context, moe_runner *runner, const moe_pass *pass,
                             uint32_t layer, moe_error *err)
{
    moe_budget_exact *x = context;
    moe_pass_buffers *b = &runner->buffers;
    size_t bytes = (size_t)pass->n_rows * runner->config->n_embd * sizeof(float);
    size_t n = (size_t)pass->n_rows * runner->config->n_expert_used;
    MOE_TRY(reserve(x, runner->config, pass->n_rows, err));
    memcpy(x->chosen, b->chosen, n * sizeof *x->chosen);
    memcpy(x->weights, b->chosen_weights, n * sizeof *x->weights);
    MOE_TRY(moe_layer_serve(runner, pass, layer, err));
    MOE_TRY(runner->device->ops->download(runner->device, x->natural, b->values[MOE_VALUE_BRANCH],
                                          bytes, err));
    MOE_TRY(x->ranks ? rank_experts(x, runner, pass->n_rows, err) : MOE_OK);
    memcpy(b->chosen, x->chosen, n * sizeof *x->chosen);
    memcpy(b->chosen_weights, x->weights, n * sizeof *x->weights);
    return MOE_OK;
}

/* Compares the output after the edits with the natural one. */
static int compare(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                   moe_error *err)
{
    moe_budget_exact *x = context;
    uint32_t n_embd = runner->config->n_embd;
    size_t bytes = (size_t)pass->n_rows * n_embd * sizeof(float);
    (void)layer;
    MOE_TRY(runner->device->ops->download(runner->device, x->edited,
                                          runner->buffers.values[MOE_VALUE_BRANCH], bytes, err));
    x->error_sum += moe_relative_square_error(x->natural, x->edited, pass->n_rows, n_embd);
    x->n_layers++;
    return MOE_OK;
}

int moe_budget_exact_open(moe_budget_exact **out, moe_expert_budget *budget, moe_runner *runner,
                          moe_error *err)
{
    *out = NULL;
    moe_budget_exact *x = moe_calloc(1, sizeof *x);
    if (x == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for measuring an expert budget");
    }
    x->budget = budget;
    x->ranks = budget->ranking == MOE_BUDGET_ORACLE;
    x->hook = (moe_pass_hook){.order = MOE_HOOK_NATURAL,
                              .passes = MOE_HOOK_ON_LOSSY | MOE_HOOK_ON_REHEARSAL,
                              .needs_host_routing = true,
                              .context = x,
                              .after_routing = compute_naturally,
                              .after_experts = compare};
    int status = moe_runner_add_hook(runner, &x->hook, err);
    if (status != MOE_OK) {
        moe_budget_exact_close(&x);
        return status;
    }
    *out = x;
    return MOE_OK;
}
