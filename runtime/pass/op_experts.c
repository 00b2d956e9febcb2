/* SPDX-License-Identifier: MIT */
/* Routed experts: the router's choice -> the layer's plan -> experts, in waves if there are more
 * than slots -> the sum of their outputs, in ascending order of the experts' numbers. */
#include <string.h>

#include <moe/lab.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/routing.h"
#include "runtime/pass/runner.h"

/* Has a place compute experts that are in its memory. views[i] belongs to the plan's entry
 * positions[i]. */
static int submit(moe_runner *runner, moe_place *place, uint32_t layer, uint32_t n, uint32_t n_rows,
                  moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    for (uint32_t i = 0; i < n; i++) {
        MOE_ASSERT(b->positions[i] < b->plan.n_experts);
        b->works[i] =
            moe_plan_work(runner, layer, &b->plan, b->positions[i], b->input_scales, &b->views[i]);
    }
    const moe_place_job job = {.x = moe_experts_x(runner, layer),
                               .n_x_rows = n_rows,
                               .works = b->works,
                               .n_works = n,
                               .out = b->values[MOE_VALUE_RANK_OUT]};
    return place->ops->submit(place, &job, err);
}

void moe_place_weights(moe_runner *runner, uint32_t layer, uint32_t n_rows)
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

/* The sum of the experts' outputs. */
moe_combine moe_op_combine_of(const moe_run *run, const moe_op *op)
{
    const moe_runner *runner = run->runner;
    const moe_pass_buffers *b = &runner->buffers;
    bool scales = moe_experts_op(runner, op->layer)->u.experts.scales_inputs;
    return (moe_combine){.outs = b->values[op->x.value],
                         .weights = run->mixed != NULL ? run->mixed
                                    : scales           ? b->output_weights
                                                       : b->chosen_weights,
                         .n_ranks = runner->config->n_expert_used,
                         .n = op->n,
                         .y = b->values[op->y.value],
                         .weights_on_device = run->mixed != NULL};
}

int moe_op_combine(const moe_run *run, const moe_op *op, moe_error *err)
{
    const moe_combine combine = moe_op_combine_of(run, op);
    moe_device *device = run->runner->device;
    return device->ops->combine(device, &combine, run->n_rows, err);
}

/* For drafts: all experts of the plan are resident. */
static int run_draft_experts(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, n_rows, runner->config->n_expert_used);
    moe_place_weights(runner, layer, n_rows);
    uint32_t n = b->plan.n_experts;
    moe_expert_store_peek(runner->experts, layer, b->plan.experts, n, b->views);
    for (uint32_t i = 0; i < n; i++) {
        b->positions[i] = i;
    }
    moe_place *place = &runner->at_device.base;
    int status = n > 0 ? submit(runner, place, layer, n, n_rows, err) : MOE_OK;
    return moe_place_collect(place, status, err);
}

/* Builds the layer's plan and request from the current choices. */
static moe_layer_request plan_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, pass->n_rows, runner->config->n_expert_used);
    moe_place_weights(runner, layer, pass->n_rows);
    return moe_plan_request(runner, pass, layer, &b->plan, b->n_rows_of, b->gates);
}

/* Lets hooks work until the next batch of experts arrives. */
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

/* Lists the plan's experts that are in host memory and not on their way to the device, by ascending
 * number of rows. */
static moe_split_work list_on_host(moe_pass_buffers *b, const moe_layer_request *request)
{
    moe_split_work work = {.n_rows = b->host_rows};
    for (uint32_t i = 0; i < request->n; i++) {
        uint32_t rows = request->n_rows[i];
        bool is_disk = b->tiers[i] == MOE_TIER_DISK;
        if (b->tiers[i] != MOE_TIER_HOST) {
            work.n_disk += is_disk;
            work.n_resident += !is_disk;
            work.n_resident_rows += is_disk ? 0 : rows;
            continue;
        }
        uint32_t at = work.n++;
        for (; at > 0 && b->host_rows[at - 1] > rows; at--) {
            b->host_rows[at] = b->host_rows[at - 1];
            b->host_positions[at] = b->host_positions[at - 1];
        }
        b->host_rows[at] = rows;
        b->host_positions[at] = i;
    }
    return work;
}

/* Gives each expert of the request a place, by cost. */
static void choose_places(moe_runner *runner, moe_layer_request *request)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_expert_sites sites;
    if (runner->at_host == NULL) {
        return;
    }
    moe_expert_store_locate(runner->experts, request->layer, request->experts, request->n, b->tiers,
                            &sites);
    moe_split_work work = list_on_host(b, request);
    work.expert_bytes = sites.expert_bytes;
    if (sites.link_ns_per_byte > 0.0) {
        moe_place_split_note_link(&runner->split, sites.link_ns_per_byte);
    }
    uint32_t n = moe_place_split_choose(&runner->split, &runner->at_host->times,
                                        &runner->at_device.base.times, &work);
    n = n < sites.most_on_host ? n : sites.most_on_host;
    memset(b->on_host, 0, request->n * sizeof *b->on_host);
    for (uint32_t i = 0; i < n; i++) {
        b->on_host[b->host_positions[i]] = true;
    }
    request->on_host = n > 0 ? b->on_host : NULL;
}

/* Computes the next experts that are ready, where they are. *n = 0: there are no more. */
static int compute_next(moe_runner *runner, const moe_layer_request *request, uint32_t n_rows,
                        uint32_t *n, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    int status = moe_expert_store_next(runner->experts, b->positions, b->views, n, err);
    if (status != MOE_OK || *n == 0) {
        return status;
    }
    bool on_host = request->on_host != NULL && request->on_host[b->positions[0]];
    return submit(runner, on_host ? runner->at_host : &runner->at_device.base, request->layer, *n,
                  n_rows, err);
}

/* Loads what is missing, and computes the experts' outputs. */
static int serve_layer(moe_runner *runner, const moe_pass *pass, moe_layer_request *request,
                       bool looks_ahead, moe_error *err)
{
    uint32_t n_rows = pass->n_rows;
    uint32_t n = 1;
    choose_places(runner, request);
    int status = moe_expert_store_begin(runner->experts, request, err);
    if (status == MOE_OK && request->on_host != NULL) {
        status = compute_next(runner, request, n_rows, &n, err); /* the host's experts come first */
    }
    if (status == MOE_OK && looks_ahead && runner->prefetches) {
        status = moe_predict_next_layer(runner, pass, request->layer, err);
    }
    if (status == MOE_OK && looks_ahead) {
        moe_hooks_while_loading(runner, pass, request->layer);
        status = moe_hooks_compute_beside(runner, pass, request->layer, err);
    }
    while (status == MOE_OK && n > 0) {
        if (looks_ahead) {
            use_wait(runner, pass);
        }
        status = compute_next(runner, request, n_rows, &n, err);
    }
    status = moe_place_collect(&runner->at_device.base, status, err);
    status = moe_place_collect(runner->at_host, status, err);
    if (status != MOE_OK || request->on_host != NULL) {
        moe_expert_store_end_layer(runner->experts);
    }
    return status;
}

/* Plans the layer, shows its request to the hooks, and scores the prediction for the layer. */
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
    int status = is_draft ? MOE_OK
                          : moe_place_announce(runner->at_host, moe_experts_x(runner, run->layer),
                                               run->n_rows, err);
    if (status == MOE_OK) {
        status = moe_route_layer(runner, pass, run->layer, runner->prefetches && !is_draft, err);
    }
    MOE_TRY(status);
    MOE_TRY(moe_hooks_after_routing(runner, pass, run->layer, err));
    moe_order_choice(runner, run->n_rows);
    return moe_hooks_before_plan(runner, pass, run->layer, err);
}

int moe_op_experts(const moe_run *run, const moe_op *op, moe_error *err)
{
    (void)op;
    if (run->pass->kind == MOE_PASS_DRAFT) {
        return run_draft_experts(run->runner, run->layer, run->n_rows, err);
    }
    moe_layer_request request = ask_for_layer(run->runner, run->pass, run->layer);
    MOE_TRY(serve_layer(run->runner, run->pass, &request, true, err));
    return moe_hooks_collect_beside(run->runner, run->pass, run->layer, err);
}

int moe_layer_compute(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    moe_layer_request request = plan_layer(runner, pass, layer);
    return serve_layer(runner, pass, &request, false, err);
}

int moe_layer_serve(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_program_layer *l = &runner->program->layers[layer];
    const moe_run run = {.runner = runner, .pass = pass, .n_rows = pass->n_rows};
    moe_order_choice(runner, pass->n_rows);
    MOE_TRY(moe_layer_compute(runner, pass, layer, err));
    return moe_program_run(&run, (moe_span){l->rest + 2, l->summed}, err);
}

int moe_layer_note(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                   const moe_played_layer *played, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_request request = ask_for_layer(runner, pass, layer);
    request.played = played;
    int status = moe_expert_store_begin(runner->experts, &request, err);
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(runner->experts, b->positions, b->views, &n, err);
    }
    if (status != MOE_OK) {
        moe_expert_store_end_layer(runner->experts);
    }
    return status;
}
