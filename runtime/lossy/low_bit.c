/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/low_bit.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/route_edit.h"
#include "runtime/pass/runner.h"
#include "runtime/place/place.h"

struct moe_low_bit {
    moe_runner *runner;
    moe_expert_store *copies;
    moe_device_place place; /* the place where copies are computed */
    float below;
    moe_pass_hook hook;
    moe_low_bit_stats stats;
    /* These members are about the current layer. */
    bool *resident;   /* [n_expert]: whether the expert itself is in memory */
    float *share;     /* [n_expert]: the expert's greatest share of a row's weights */
    uint32_t *chosen; /* [rows][n_expert_used]: experts that copies replace, or none */
    moe_layer_plan plan;
    uint32_t *n_rows;  /* [n_expert] by entries of the plan, as are the next arrays */
    float *gates;      /* the sum of the rows' weights */
    float *row_scales; /* [rows * n_expert_used], in the plan's order: scales of inputs */
    uint32_t *positions;
    moe_expert_view *views;
    moe_expert_work *works;
};

/* ---- Choosing the experts whose copies are used ---- */

/* Computes, for each expert, the largest share that it has of the mixing weights of any row. */
static void find_shares(moe_low_bit *f, const moe_pass *pass)
{
    const moe_model_config *c = f->runner->config;
    const moe_pass_buffers *b = &f->runner->buffers;
    memset(f->share, 0, c->n_expert * sizeof *f->share);
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        const uint32_t *experts = b->chosen + (size_t)r * c->n_expert_used;
        const float *weights = b->chosen_weights + (size_t)r * c->n_expert_used;
        float sum = 0.0f;
        for (uint32_t k = 0; k < c->n_expert_used; k++) {
            sum += weights[k];
        }
        for (uint32_t k = 0; k < c->n_expert_used; k++) {
            float share = sum > 0.0f ? weights[k] / sum : 1.0f;
            if (experts[k] < c->n_expert && share > f->share[experts[k]]) {
                f->share[experts[k]] = share;
            }
        }
    }
}

/* Takes the chosen experts out of the layer's request to the experts' own store. Their places then
 * have no expert, but keep their weights. */
static int take_out(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                    moe_error *err)
{
    moe_low_bit *f = context;
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n = pass->n_rows * c->n_expert_used;
    (void)err;
    moe_expert_store_residents(runner->experts, layer, f->resident);
    find_shares(f, pass);
    for (uint32_t s = 0; s < n; s++) {
        uint32_t expert = b->chosen[s];
        f->chosen[s] = MOE_PLAN_NO_EXPERT;
        if (expert >= c->n_expert) {
            continue;
        }
        f->stats.n_picks++;
        f->stats.mass += b->chosen_weights[s];
        bool all = f->below >= 1.0f;
        if (!f->resident[expert] && (all || f->share[expert] < f->below)) {
            f->stats.n_stood++;
            f->stats.mass_stood += b->chosen_weights[s];
            f->chosen[s] = expert;
            b->chosen[s] = MOE_PLAN_NO_EXPERT;
        }
    }
    moe_layer_plan_build(&f->plan, f->chosen, pass->n_rows, c->n_expert_used);
    f->stats.n_experts += f->plan.n_experts;
    return MOE_OK;
}

/* ---- Computing with copies ---- */

static int run_copies(moe_low_bit *f, uint32_t layer, uint32_t n, uint32_t n_rows, moe_error *err)
{
    moe_runner *runner = f->runner;
    for (uint32_t i = 0; i < n; i++) {
        f->works[i] =
            moe_plan_work(runner, layer, &f->plan, f->positions[i], f->row_scales, &f->views[i]);
    }
    const moe_place_job job = {.x = moe_experts_x(runner, layer),
                               .n_x_rows = n_rows,
                               .works = f->works,
                               .n_works = n,
                               .out = runner->buffers.values[MOE_VALUE_RANK_OUT]};
    return moe_place_compute(&f->place.base, &job, err);
}

static int compute_beside(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                          moe_error *err)
{
    moe_low_bit *f = context;
    if (f->plan.n_experts == 0) {
        return MOE_OK;
    }
    for (uint32_t s = 0; s < f->plan.first[f->plan.n_experts]; s++) {
        f->row_scales[s] = runner->buffers.chosen_weights[f->plan.ranked_slots[s]];
    }
    moe_layer_request request =
        moe_plan_request(runner, pass, layer, &f->plan, f->n_rows, f->gates);
    int status = moe_expert_store_begin(f->copies, &request, err);
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(f->copies, f->positions, f->views, &n, err);
        if (status == MOE_OK && n > 0) {
            status = run_copies(f, layer, n, pass->n_rows, err);
        }
    }
    if (status != MOE_OK) {
        moe_expert_store_end_layer(f->copies);
    }
    return status;
}

static int after_pass(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    moe_low_bit *f = context;
    (void)pass;
    (void)err;
    moe_expert_store_end_pass(f->copies, runner->n_passes);
    return MOE_OK;
}

/* ---- Opening ---- */

int moe_low_bit_create(moe_low_bit **out, moe_runner *runner, moe_expert_store *copies, float below,
                       moe_error *err)
{
    const moe_model_config *c = runner->config;
    uint32_t n = c->n_expert;
    uint32_t n_rows = runner->buffers.max_rows;
    size_t n_slots = (size_t)n_rows * c->n_expert_used;
    moe_low_bit *f = moe_calloc(1, sizeof *f);
    *out = f;
    if (f == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for copies of experts");
    }
    f->runner = runner;
    f->copies = copies;
    moe_device_place_init(&f->place, runner->device, c->n_expert_in, false);
    f->below = below;
    f->resident = moe_calloc(n, sizeof *f->resident);
    f->share = moe_calloc(n, sizeof *f->share);
    f->chosen = moe_calloc(n_slots, sizeof *f->chosen);
    f->n_rows = moe_calloc(n, sizeof *f->n_rows);
    f->gates = moe_calloc(n, sizeof *f->gates);
    f->row_scales = moe_calloc(n_slots, sizeof *f->row_scales);
    f->positions = moe_calloc(n, sizeof *f->positions);
    f->views = moe_calloc(n, sizeof *f->views);
    f->works = moe_calloc(n, sizeof *f->works);
    if (f->resident == NULL || f->share == NULL || f->chosen == NULL || f->n_rows == NULL ||
        f->gates == NULL || f->row_scales == NULL || f->positions == NULL || f->views == NULL ||
        f->works == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for copies of experts");
    }
    return moe_layer_plan_init(&f->plan, n_rows, c->n_expert_used, n, err);
}

int moe_low_bit_attach(moe_low_bit *f, moe_error *err)
{
    f->hook = (moe_pass_hook){.order = MOE_HOOK_STAND_IN,
                              .passes = MOE_HOOK_ON_LOSSY,
                              .needs_host_routing = true,
                              .context = f,
                              .before_plan = take_out,
                              .compute_beside = compute_beside,
                              .after_pass = after_pass};
    return moe_runner_add_hook(f->runner, &f->hook, err);
}

void moe_low_bit_free(moe_low_bit **low_bit)
{
    moe_low_bit *f = *low_bit;
    if (f == NULL) {
        return;
    }
    moe_layer_plan_free(&f->plan);
    free(f->resident);
    free(f->share);
    free(f->chosen);
    free(f->n_rows);
    free(f->gates);
    free(f->row_scales);
    free(f->positions);
    free(f->views);
    free(f->works);
    free(f);
    *low_bit = NULL;
}

const moe_low_bit_stats *moe_low_bit_get_stats(const moe_low_bit *f)
{
    return &f->stats;
}
