/* SPDX-License-Identifier: MIT */
/* norm -> a dense network, or: router | -> plan -> experts, in waves if there are more than slots
 * -> their outputs in rank order -> plus the shared expert. At '|' the host first needs a device
 * result; everything before it can be recorded. Norms, inputs and scales differ between families
 * (moe_model_config). */
#include "runtime/base/clock.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/host_compute.h"
#include "runtime/pass/layer_norms.h"
#include "runtime/pass/runner.h"
#include "runtime/pass/routing.h"

/* Runs a network that every row passes through; its tensors are gate and the two that follow. */
static int run_dense(moe_runner *runner, uint32_t layer, int gate, uint32_t n_rows, float *out,
                     moe_error *err)
{
    const moe_model_config *c = runner->config;
    uint32_t n_embd = c->n_embd;
    int first = c->no_gate_matrix ? gate + 1 : gate;
    moe_expert_work work = {.gate = *moe_layer_weight(runner, layer, first),
                            .up = *moe_layer_weight(runner, layer, gate + 1),
                            .down = *moe_layer_weight(runner, layer, gate + 2),
                            .activation = moe_activation_of(c, c->layers[layer].shared_limit),
                            .n_rows = n_rows};
    return runner->device->ops->experts(runner->device, runner->buffers.norm, n_rows, n_embd, &work,
                                        1, out, n_embd, err);
}

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
    int status =
        runner->device->ops->experts(runner->device, moe_experts_x(runner), n_rows, c->n_expert_in,
                                     b->works, n, b->rank_out, c->n_expert_in, err);
    moe_host_compute_timed(runner, begin, n, n_work_rows);
    return status;
}

/* If weights scale the experts' inputs: the scales of the plan's rows, and the remaining weights of
 * outputs.
 */
static void place_weights(moe_runner *runner, uint32_t n_rows)
{
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n = runner->config->gate_scales_input ? n_rows * runner->config->n_expert_used : 0;
    for (uint32_t i = 0; i < n; i++) {
        b->output_weights[i] = b->chosen_weights[i] != 0.0f ? 1.0f : 0.0f;
    }
    n = n > 0 ? b->plan.first[b->plan.n_experts] : 0;
    for (uint32_t i = 0; i < n; i++) {
        b->input_scales[i] = b->chosen_weights[b->plan.ranked_slots[i]];
    }
}

/* Adds up the experts' outputs, in buffers->branch. */
static int combine_experts(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    const moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    moe_combine combine = {.outs = b->rank_out,
                           .weights = c->gate_scales_input ? b->output_weights : b->chosen_weights,
                           .n_ranks = c->n_expert_used,
                           .n = c->n_expert_in,
                           .y = moe_experts_are_latent(c) ? b->latent_out : b->branch};
    int status = ops->combine(runner->device, &combine, n_rows, err);
    if (status != MOE_OK || !moe_experts_are_latent(c)) {
        return status;
    }
    moe_linear out = {*moe_layer_weight(runner, layer, MOE_LAYER_LATENT_OUT), NULL, b->branch};
    return ops->linear(runner->device, b->latent_out, n_rows, c->n_expert_in, &out, 1, err);
}

/* For drafts: all experts of the plan are resident. */
static int run_draft_experts(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, n_rows, runner->config->n_expert_used);
    place_weights(runner, n_rows);
    uint32_t n = b->plan.n_experts;
    moe_expert_store_peek(runner->experts, layer, b->plan.experts, n, b->views);
    for (uint32_t i = 0; i < n; i++) {
        b->positions[i] = i;
    }
    int status = n > 0 ? run_ready_experts(runner, layer, n, n_rows, err) : MOE_OK;
    return status != MOE_OK ? status : combine_experts(runner, layer, n_rows, err);
}

/* Builds the layer's plan and request from the choices as they are now. */
static moe_layer_request plan_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    moe_pass_buffers *b = &runner->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, pass->n_rows, runner->config->n_expert_used);
    place_weights(runner, pass->n_rows);
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

/* Loads what is missing, and computes rank_out and branch. */
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
        return status;
    }
    return combine_experts(runner, request->layer, n_rows, err);
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

static int run_routed_experts(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                              moe_error *err)
{
    moe_layer_request request = ask_for_layer(runner, pass, layer);
    return serve_layer(runner, pass, &request, true, err);
}

static int choose_experts(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    bool is_draft = pass->kind == MOE_PASS_DRAFT;
    int status = is_draft ? MOE_OK : moe_host_compute_bring_x(runner, pass->n_rows, err);
    if (status == MOE_OK) {
        status = moe_route_layer(runner, layer, pass->n_rows, runner->prefetches && !is_draft, err);
    }
    return status != MOE_OK ? status : moe_hooks_after_routing(runner, pass, layer, err);
}

/* The shared expert's output, into buffers->shared. */
static int run_shared_expert(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    int status = MOE_OK;
    if (c->experts_input != MOE_EXPERTS_NORM) {
        status = moe_norm_embedding(runner, layer, MOE_LAYER_FFN_NORM, b->x, b->norm, n_rows, err);
    }
    if (status == MOE_OK) {
        status = run_dense(runner, layer, MOE_LAYER_SHARED_GATE, n_rows, b->shared, err);
    }
    if (status == MOE_OK && c->shared_gated) {
        moe_linear gate = {*moe_layer_weight(runner, layer, MOE_LAYER_SHARED_ROUTER), NULL,
                           b->shared_gate};
        status = device->ops->linear(device, b->norm, n_rows, c->n_embd, &gate, 1, err);
        if (status == MOE_OK) {
            status = device->ops->sigmoid_scale(device, b->shared_gate, b->shared, n_rows,
                                                c->n_embd, err);
        }
    }
    return status;
}

static int add_shared_expert(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    size_t n = (size_t)n_rows * c->n_embd;
    int status = run_shared_expert(runner, layer, n_rows, err);
    if (status == MOE_OK && c->branches_normed) {
        status = moe_norm_embedding(runner, layer, MOE_LAYER_EXPERTS_POST_NORM, b->branch,
                                    b->branch, n_rows, err);
    }
    if (status == MOE_OK && c->branches_normed) {
        status = moe_norm_embedding(runner, layer, MOE_LAYER_SHARED_POST_NORM, b->shared, b->shared,
                                    n_rows, err);
    }
    if (status == MOE_OK) {
        status = ops->add(runner->device, b->branch, b->shared, b->branch, n, err);
    }
    return status == MOE_OK && c->branch_scale != 1.0f
               ? ops->scale(runner->device, c->branch_scale, b->branch, n, err)
               : status;
}

static int run_experts(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    uint32_t n_rows = pass->n_rows;
    int status = pass->serve_layer != NULL ? pass->serve_layer(pass->serve_user, runner, layer, err)
                                           : choose_experts(runner, pass, layer, err);
    if (status == MOE_OK && pass->serve_layer == NULL) {
        status = pass->kind == MOE_PASS_DRAFT ? run_draft_experts(runner, layer, n_rows, err)
                                              : run_routed_experts(runner, pass, layer, err);
    }
    return status != MOE_OK ? status : moe_hooks_after_experts(runner, pass, layer, err);
}

/* Adds branch to x. */
static int add_branch(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    float out_scale = runner->weights->layers[layer].out_scale;
    size_t n = (size_t)n_rows * c->n_embd;
    int status = MOE_OK;
    if (c->ffn_post_norm_tensor != NULL) {
        status = moe_norm_embedding(runner, layer, MOE_LAYER_FFN_POST_NORM, b->branch, b->branch,
                                    n_rows, err);
    }
    if (status == MOE_OK && c->residual_scale != 1.0f) {
        status = ops->scale(runner->device, c->residual_scale, b->branch, n, err);
    }
    if (status == MOE_OK) {
        status = ops->add(runner->device, b->x, b->branch, b->x, n, err);
    }
    return status == MOE_OK && out_scale != 1.0f
               ? ops->scale(runner->device, out_scale, b->x, n, err)
               : status;
}

/* ---- Kinds ---- */

/* Each kind has two parts: up to the routing, and the rest. */
typedef struct feed_forward {
    int (*begin)(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
    int (*end)(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
} feed_forward;

/* What the block reads, into buffers->norm. A parallel block reads what attention has read, which
 * is still there. */
static int norm_input(moe_runner *runner, uint32_t layer, int tensor, uint32_t n_rows,
                      moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    return runner->config->parallel_residual
               ? MOE_OK
               : moe_norm_embedding(runner, layer, tensor, b->x, b->norm, n_rows, err);
}

static int begin_dense(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = norm_input(runner, layer, MOE_LAYER_FFN_NORM, pass->n_rows, err);
    if (status == MOE_OK) {
        status =
            run_dense(runner, layer, MOE_LAYER_FFN_GATE, pass->n_rows, runner->buffers.branch, err);
    }
    return status != MOE_OK ? status : add_branch(runner, layer, pass->n_rows, err);
}

static int do_nothing(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    (void)runner;
    (void)pass;
    (void)layer;
    (void)err;
    return MOE_OK;
}

static int begin_routed(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = runner->config;
    uint32_t n_rows = pass->n_rows;
    if (c->experts_input == MOE_EXPERTS_LAYER_NORM) {
        return MOE_OK; /* the attention block has done it */
    }
    bool own_norm = c->experts_input == MOE_EXPERTS_OWN_NORM;
    int status = c->router_input == MOE_ROUTER_OWN_NORM
                     ? moe_queue_own_router(runner, layer, n_rows, err)
                     : MOE_OK;
    if (status == MOE_OK) {
        int tensor = own_norm ? MOE_LAYER_EXPERTS_NORM : MOE_LAYER_FFN_NORM;
        status = norm_input(runner, layer, tensor, n_rows, err);
    }
    if (status == MOE_OK && c->router_input == MOE_ROUTER_AS_EXPERTS) {
        status = moe_queue_router(runner, layer, runner->buffers.norm, n_rows, err);
    }
    return status != MOE_OK ? status : moe_project_latent(runner, layer, n_rows, err);
}

static int end_routed(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = run_experts(runner, pass, layer, err);
    return status != MOE_OK ? status : add_branch(runner, layer, pass->n_rows, err);
}

static int end_both(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = run_experts(runner, pass, layer, err);
    if (status == MOE_OK) {
        status = add_shared_expert(runner, layer, pass->n_rows, err);
    }
    return status != MOE_OK ? status : add_branch(runner, layer, pass->n_rows, err);
}

static const feed_forward kinds[MOE_FEED_FORWARDS] = {
    [MOE_FEED_FORWARD_DENSE] = {begin_dense, do_nothing},
    [MOE_FEED_FORWARD_ROUTED] = {begin_routed, end_routed},
    [MOE_FEED_FORWARD_BOTH] = {begin_routed, end_both},
    [MOE_FEED_FORWARD_NONE] = {do_nothing, do_nothing},
};

int moe_feed_forward_begin(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    return kinds[runner->config->layers[layer].feed_forward].begin(runner, pass, layer, err);
}

int moe_feed_forward_end(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    return kinds[runner->config->layers[layer].feed_forward].end(runner, pass, layer, err);
}

int moe_feed_forward_serve(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    moe_layer_request request = plan_layer(runner, pass, layer);
    return serve_layer(runner, pass, &request, false, err);
}

int moe_feed_forward_note(moe_runner *runner, const moe_pass *pass, uint32_t layer,
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
