/* SPDX-License-Identifier: MIT */
/* Routed experts: the router's choice -> the layer's plan -> experts, in waves if there are more
 * than slots -> their outputs in rank order. */
#include "runtime/base/clock.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/host_compute.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/routing.h"
#include "runtime/pass/runner.h"

/* Runs experts of the plan that are in the device's memory: views[i] is the plan's entry
 * positions[i]. */
static int run_ready_experts(moe_runner *runner, uint32_t layer, uint32_t n, uint32_t n_rows,
                             moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_layer_plan *plan = &b->plan;
    uint32_t n_work_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        MOE_ASSERT(b->positions[i] < plan->n_experts);
        b->works[i] =
            moe_plan_work(runner, layer, plan, b->positions[i], b->input_scales, &b->views[i]);
        n_work_rows += b->works[i].n_rows;
    }
    MOE_ASSERT(n_work_rows <= n_rows * c->n_expert_used);
    uint64_t begin = moe_host_compute_time(runner);
    int status = runner->device->ops->experts(runner->device, moe_experts_x(runner, layer), n_rows,
                                              c->n_expert_in, b->works, n,
                                              b->values[MOE_VALUE_RANK_OUT], c->n_expert_in, err);
    moe_host_compute_timed(runner, begin, n, n_work_rows);
    return status;
}

/* If weights scale the experts' inputs: the scales of the plan's rows, and the remaining weights of
 * outputs. */
static void place_weights(moe_runner *runner, uint32_t layer, uint32_t n_rows)
{
    moe_pass_buffers *b = &runner->buffers;
    bool scales = moe_experts_op(runner, layer)->u.experts.scales_inputs;
    uint32_t n = scales ? n_rows * runner->config->n_expert_used : 0;
    for (uint32_t i = 0; i < n; i++) {
        b->output_weights[i] = b->chosen_weights[i] != 0.0f ? 1.0f : 0.0f;
    }
    n = n > 0 ? b->plan.first[b->plan.n_experts] : 0;
    for (uint32_t i = 0; i < n; i++) {
        b->input_scales[i] = b->chosen_weights[b->plan.ranked_slots[i]];
    }
}

/* Adds up the experts' outputs. */
int moe_op_combine(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_runner *runner = run->runner;
    const moe_pass_buffers *b = &runner->buffers;
    bool scales = moe_experts_op(runner, run->layer)->u.experts.scales_inputs;
    moe_combine combine = {.outs = b->values[op->x.value],
                           .weights = scales ? b->output_weights : b->chosen_weights,
                           .n_ranks = runner->config->n_expert_used,
                           .n = op->n,
                           .y = b->values[op->y.value]};
    return runner->device->ops->combine(runner->device, &combine, run->n_rows, err);
}

/* For drafts: all experts of the plan are resident. */
static int run_draft_experts(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, n_rows, runner->config->n_expert_used);
    place_weights(runner, layer, n_rows);
    uint32_t n = b->plan.n_experts;
    moe_expert_store_peek(runner->experts, layer, b->plan.experts, n, b->views);
    for (uint32_t i = 0; i < n; i++) {
        b->positions[i] = i;
    }
    return n > 0 ? run_ready_experts(runner, layer, n, n_rows, err) : MOE_OK;
}

/* Builds the layer's plan and request from the choices as they are now. */
static moe_layer_request plan_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, pass->n_rows, runner->config->n_expert_used);
    place_weights(runner, layer, pass->n_rows);
    return moe_plan_request(runner, pass, layer, &b->plan, b->n_rows_of, b->gates);
}

/* Lets hooks work while the next batch of experts is on its way. */
static void use_wait(moe_runner *runner, const moe_pass *pass)
{
    uint64_t expected_ns;
    uint64_t begin = moe_now_ns();
    bool any = false;
    while ((expected_ns = moe_expert_store_expected_wait_ns(runner->experts)) > 0 &&
           moe_hooks_while_waiting(runner, pass, expected_ns)) {
        any = true;
    }
    if (any) {
        moe_expert_store_note_wait(runner->experts, moe_now_ns() - begin);
    }
}

/* Loads what is missing, and computes the experts' outputs. */
static int serve_layer(moe_runner *runner, const moe_pass *pass, const moe_layer_request *request,
                       bool looks_ahead, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n_rows = pass->n_rows;
    int status = moe_expert_store_begin(runner->experts, request, err);
    if (status == MOE_OK) {
        status = moe_host_compute_start(runner, request->layer, n_rows, err);
    }
    if (status == MOE_OK && looks_ahead && runner->prefetches) {
        status = moe_predict_next_layer(runner, request->layer, n_rows, err);
    }
    if (status == MOE_OK && looks_ahead) {
        moe_hooks_while_loading(runner, pass, request->layer);
        status = moe_hooks_compute_beside(runner, pass, request->layer, err);
    }
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        if (looks_ahead) {
            use_wait(runner, pass);
        }
        status = moe_expert_store_next(runner->experts, b->positions, b->views, &n, err);
        if (status == MOE_OK && n > 0) {
            status = run_ready_experts(runner, request->layer, n, n_rows, err);
        }
    }
    status = moe_host_compute_finish(runner, status, err);
    if (status != MOE_OK) {
        moe_expert_store_abandon(runner->experts);
    }
    return status;
}

/* Plans the layer, shows the request to the hooks, and scores the prediction for the layer. */
static moe_layer_request ask_for_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    moe_layer_request request = plan_layer(runner, pass, layer);
    runner->n_pass_experts += request.n;
    moe_hooks_on_request(runner, pass, &request);
    moe_score_prediction(runner, layer);
    return request;
}

int moe_op_route(const moe_run *run, const moe_op *op, moe_error *err)
{
    moe_runner *runner = run->runner;
    const moe_pass *pass = run->pass;
    bool is_draft = pass->kind == MOE_PASS_DRAFT;
    (void)op;
    int status = is_draft ? MOE_OK : moe_host_compute_bring_x(runner, run->layer, run->n_rows, err);
    if (status == MOE_OK) {
        status =
            moe_route_layer(runner, run->layer, run->n_rows, runner->prefetches && !is_draft, err);
    }
    return status != MOE_OK ? status : moe_hooks_after_routing(runner, pass, run->layer, err);
}

int moe_op_experts(const moe_run *run, const moe_op *op, moe_error *err)
{
    (void)op;
    if (run->pass->kind == MOE_PASS_DRAFT) {
        return run_draft_experts(run->runner, run->layer, run->n_rows, err);
    }
    moe_layer_request request = ask_for_layer(run->runner, run->pass, run->layer);
    return serve_layer(run->runner, run->pass, &request, true, err);
}

int moe_layer_serve(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = {.runner = runner, .pass = pass, .layer = layer, .n_rows = pass->n_rows};
    moe_layer_request request = plan_layer(runner, pass, layer);
    int status = serve_layer(runner, pass, &request, false, err);
    return status != MOE_OK ? status
                            : moe_program_run(&run, (moe_span){l->rest + 2, l->summed}, err);
}

int moe_layer_note(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                   const moe_played_layer *played, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_request request = ask_for_layer(runner, pass, layer);
    request.reach = played->reach;
    request.kept = played->kept;
    request.n_kept = played->n_kept;
    request.offered = played->offered;
    int status = moe_expert_store_begin(runner->experts, &request, err);
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(runner->experts, b->positions, b->views, &n, err);
    }
    if (status != MOE_OK) {
        moe_expert_store_abandon(runner->experts);
    }
    return status;
}
