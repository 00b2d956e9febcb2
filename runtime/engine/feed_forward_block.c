/* SPDX-License-Identifier: MIT */
/* norm -> a dense network, or: router | -> plan -> experts, in waves when there are more than slots
 * -> their outputs in rank order -> plus the shared expert. The bar is where the host first has to
 * know something: what is before it may be recorded. */
#include "runtime/base/clock.h"
#include "runtime/engine/budget_exact.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/route_editing.h"
#include "runtime/engine/route_replay.h"
#include "runtime/engine/routing.h"

#define MOST_BROUGHT 32u /* rows */

/* A network that every row passes through. */
static int run_dense(moe_engine *engine, const moe_weight *gate, const moe_weight *up,
                     const moe_weight *down, uint32_t n_rows, float *out, moe_error *err)
{
    uint32_t n_embd = engine->config.n_embd;
    moe_expert_work work = {.gate = *gate, .up = *up, .down = *down, .n_rows = n_rows};
    return engine->device->ops->experts(engine->device, engine->buffers.norm, n_rows, n_embd, &work,
                                        1, out, n_embd, err);
}

/* Experts of the plan that are in the device's memory: plan entry positions[i] by views[i]. */
static int run_ready_experts(moe_engine *engine, uint32_t n, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_pass_buffers *b = &engine->buffers;
    const moe_layer_plan *plan = &b->plan;
    uint32_t n_work_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        const moe_expert_view *view = &b->views[i];
        uint32_t begin = plan->first[b->positions[i]];
        b->works[i] = (moe_expert_work){.gate = view->parts[MOE_EXPERT_GATE],
                                        .up = view->parts[MOE_EXPERT_UP],
                                        .down = view->parts[MOE_EXPERT_DOWN],
                                        .x_index = plan->rows + begin,
                                        .out_index = plan->ranked_slots + begin,
                                        .n_rows = plan->first[b->positions[i] + 1] - begin};
        n_work_rows += b->works[i].n_rows;
    }
    uint64_t begin = moe_now_ns();
    int status = engine->device->ops->experts(engine->device, b->norm, n_rows, c->n_embd, b->works,
                                              n, b->rank_out, c->n_embd, err);
    if (engine->host != NULL) {
        moe_expert_store_note_device(engine->experts, n, n_work_rows, moe_now_ns() - begin);
    }
    return status;
}

/* Whether activations come to the host with the routing, in case that it has a share: a few rows
 * cost less than another round trip. */
static bool brings_x(const moe_engine *engine, uint32_t n_rows)
{
    return engine->host != NULL && engine->device->queues && n_rows <= MOST_BROUGHT &&
           engine->plan.expert_slots < engine->plan.experts;
}

/* The host's share of the layer, if the store gives it one, begins beside the device's. */
static int start_host_share(moe_engine *engine, uint32_t n_rows, uint32_t *n, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    *n = 0;
    if (engine->host == NULL) {
        return MOE_OK;
    }
    moe_expert_store_take_host(engine->experts, b->host_positions, b->host_views, n);
    if (*n == 0) {
        return MOE_OK;
    }
    moe_host_share share = {.plan = &b->plan,
                            .positions = b->host_positions,
                            .views = b->host_views,
                            .n = *n,
                            .x = brings_x(engine, n_rows) ? NULL : b->norm,
                            .n_rows = n_rows};
    int status = moe_host_compute_start(engine->host, &share, err);
    if (status != MOE_OK) {
        moe_expert_store_host_done(engine->experts, engine->n_passes);
        *n = 0;
    }
    return status;
}

/* Waits for the host's share of n experts; its outputs are wanted when the rest has succeeded. */
static int finish_host_share(moe_engine *engine, uint32_t n, int status, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    if (n == 0) {
        return status;
    }
    uint32_t n_rows;
    uint64_t ns;
    int host_status =
        moe_host_compute_wait(engine->host, &n_rows, &ns, status == MOE_OK ? err : NULL);
    moe_expert_store_note_host(engine->experts, n, n_rows, ns);
    moe_expert_store_host_done(engine->experts, engine->n_passes);
    if (status == MOE_OK && host_status == MOE_OK) {
        host_status = moe_host_compute_deliver(engine->host, b->rank_out, err);
    }
    return status != MOE_OK ? status : host_status;
}

static int combine_experts(moe_engine *engine, uint32_t n_rows, moe_error *err)
{
    moe_combine combine = {.outs = engine->buffers.rank_out,
                           .weights = engine->buffers.chosen_weights,
                           .n_ranks = engine->config.n_expert_used,
                           .n = engine->config.n_embd,
                           .y = engine->buffers.branch};
    return engine->device->ops->combine(engine->device, &combine, n_rows, err);
}

/* A draft's: all of the plan is resident. */
static int run_draft_experts(moe_engine *engine, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, n_rows, engine->config.n_expert_used);
    uint32_t n = b->plan.n_experts;
    moe_expert_store_peek(engine->experts, layer, b->plan.experts, n, b->views);
    for (uint32_t i = 0; i < n; i++) {
        b->positions[i] = i;
    }
    int status = n > 0 ? run_ready_experts(engine, n, n_rows, err) : MOE_OK;
    return status != MOE_OK ? status : combine_experts(engine, n_rows, err);
}

/* What the layer's plan asks for, by the choices as they are now. */
static moe_layer_request plan_layer(moe_engine *engine, const moe_pass *pass, uint32_t layer)
{
    moe_pass_buffers *b = &engine->buffers;
    moe_layer_plan_build(&b->plan, b->chosen, pass->n_rows, engine->config.n_expert_used);
    for (uint32_t i = 0; i < b->plan.n_experts; i++) {
        b->n_rows_of[i] = b->plan.first[i + 1] - b->plan.first[i];
        b->gates[i] = 0.0f;
        for (uint32_t s = b->plan.first[i]; s < b->plan.first[i + 1]; s++) {
            b->gates[i] += b->chosen_weights[b->plan.ranked_slots[s]];
        }
    }
    return (moe_layer_request){.layer = layer,
                               .pass = engine->n_passes,
                               .experts = b->plan.experts,
                               .n_rows = b->n_rows_of,
                               .gates = b->gates,
                               .n = b->plan.n_experts,
                               .cancel = {pass->is_cancelled, pass->cancel_user}};
}

static int look_ahead(moe_engine *engine, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    int status = engine->prefetches ? moe_predict_next_layer(engine, layer, n_rows, err) : MOE_OK;
    if (status == MOE_OK && engine->oracle != NULL) {
        moe_overlap_layer(engine, layer, &engine->buffers.plan);
    }
    return status;
}

/* Brings in what is missing, and computes: rank_out and branch. */
static int serve_layer(moe_engine *engine, const moe_layer_request *request, uint32_t n_rows,
                       bool looks_ahead, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    uint32_t n_host = 0;
    int status = moe_expert_store_begin(engine->experts, request, err);
    if (status == MOE_OK) {
        status = start_host_share(engine, n_rows, &n_host, err);
    }
    if (status == MOE_OK && looks_ahead) {
        status = look_ahead(engine, request->layer, n_rows, err);
    }
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(engine->experts, b->positions, b->views, &n, err);
        if (status == MOE_OK && n > 0) {
            status = run_ready_experts(engine, n, n_rows, err);
        }
    }
    status = finish_host_share(engine, n_host, status, err);
    if (status != MOE_OK) {
        moe_expert_store_abandon(engine->experts);
        return status;
    }
    return combine_experts(engine, n_rows, err);
}

/* By the choices as they stand. */
static moe_layer_request ask_for_layer(moe_engine *engine, const moe_pass *pass, uint32_t layer)
{
    moe_layer_request request = plan_layer(engine, pass, layer);
    engine->n_pass_experts += request.n;
    moe_choose_kept(engine, &request);
    moe_score_prediction(engine, layer);
    return request;
}

static int run_routed_experts(moe_engine *engine, const moe_pass *pass, uint32_t layer,
                              moe_error *err)
{
    moe_layer_request request = ask_for_layer(engine, pass, layer);
    return serve_layer(engine, &request, pass->n_rows, true, err);
}

/* The layer as the router chose, for the analysis of an expert budget. */
static int run_natural_experts(moe_engine *engine, const moe_pass *pass, uint32_t layer,
                               moe_error *err)
{
    uint32_t n_rows = pass->n_rows;
    moe_layer_request request = plan_layer(engine, pass, layer);
    int status = serve_layer(engine, &request, n_rows, false, err);
    return status != MOE_OK ? status : moe_budget_exact_natural(engine, n_rows, err);
}

static int choose_experts(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    bool is_draft = pass->kind == MOE_PASS_DRAFT;
    int status = MOE_OK;
    if (!is_draft && brings_x(engine, pass->n_rows)) {
        size_t bytes = (size_t)pass->n_rows * engine->config.n_embd * sizeof(float);
        status = engine->device->ops->download_later(
            engine->device, moe_host_compute_x(engine->host), b->norm, bytes, err);
    }
    if (status == MOE_OK) {
        status = moe_route_layer(engine, layer, pass->n_rows, engine->prefetches && !is_draft, err);
    }
    if (status == MOE_OK && engine->route_replay != NULL) {
        moe_route_replay(engine->route_replay, layer, pass->kv_rows, pass->n_rows,
                         engine->config.n_expert_used, b->chosen);
    }
    if (status == MOE_OK && moe_budget_exact_wanted(engine, pass)) {
        status = run_natural_experts(engine, pass, layer, err);
    }
    if (status == MOE_OK) {
        moe_edit_routes(engine, pass, layer);
    }
    if (status != MOE_OK || engine->observers == NULL || pass->kind == MOE_PASS_DRAFT) {
        return status;
    }
    moe_route_event event = {.pass = engine->n_passes,
                             .layer = layer,
                             .n_rows = pass->n_rows,
                             .n_expert = engine->config.n_expert,
                             .n_used = engine->config.n_expert_used,
                             .rows = pass->row_ids,
                             .experts = b->chosen,
                             .weights = b->chosen_weights,
                             .probs = b->router_probs,
                             .hidden = b->norm};
    return moe_observe_route(engine, &event, err);
}

static int add_shared_expert(moe_engine *engine, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_pass_buffers *b = &engine->buffers;
    moe_device *device = engine->device;
    int status =
        run_dense(engine, moe_layer_weight(engine, layer, MOE_LAYER_SHARED_GATE),
                  moe_layer_weight(engine, layer, MOE_LAYER_SHARED_UP),
                  moe_layer_weight(engine, layer, MOE_LAYER_SHARED_DOWN), n_rows, b->shared, err);
    if (status == MOE_OK && c->shared_gated) {
        moe_linear gate = {*moe_layer_weight(engine, layer, MOE_LAYER_SHARED_ROUTER), NULL,
                           b->shared_gate};
        status = device->ops->linear(device, b->norm, n_rows, c->n_embd, &gate, 1, err);
        if (status == MOE_OK) {
            status = device->ops->sigmoid_scale(device, b->shared_gate, b->shared, n_rows,
                                                c->n_embd, err);
        }
    }
    return status != MOE_OK ? status
                            : device->ops->add(device, b->branch, b->shared, b->branch,
                                               (size_t)n_rows * c->n_embd, err);
}

static int run_experts(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    uint32_t n_rows = pass->n_rows;
    struct moe_recorded_pass *recorded = pass->recorded;
    int status = recorded != NULL ? moe_recorded_pass_experts(engine, recorded, layer, err)
                                  : choose_experts(engine, pass, layer, err);
    if (status == MOE_OK && recorded == NULL) {
        status = pass->kind == MOE_PASS_DRAFT ? run_draft_experts(engine, layer, n_rows, err)
                                              : run_routed_experts(engine, pass, layer, err);
    }
    if (status == MOE_OK && moe_budget_exact_wanted(engine, pass)) {
        status = moe_budget_exact_compare(engine, n_rows, err);
    }
    if (status == MOE_OK && engine->config.n_ff_shared > 0) {
        status = add_shared_expert(engine, layer, n_rows, err);
    }
    return status;
}

/* branch to x. */
static int add_branch(moe_engine *engine, uint32_t n_rows, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    const moe_device_ops *ops = engine->device->ops;
    float scale = engine->config.residual_scale;
    size_t n = (size_t)n_rows * engine->config.n_embd;
    int status = scale != 1.0f ? ops->scale(engine->device, scale, b->branch, n, err) : MOE_OK;
    return status != MOE_OK ? status : ops->add(engine->device, b->x, b->branch, b->x, n, err);
}

int moe_feed_forward_begin(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_pass_buffers *b = &engine->buffers;
    uint32_t n_rows = pass->n_rows;
    int status = engine->device->ops->rms_norm(
        engine->device, b->x, moe_layer_weight(engine, layer, MOE_LAYER_FFN_NORM)->data, b->norm,
        n_rows, c->n_embd, c->n_embd, c->norm_eps, err);
    if (status == MOE_OK && moe_layer_has_experts(c, layer)) {
        return moe_queue_router(engine, layer, b->norm, n_rows, err);
    }
    if (status == MOE_OK) {
        status =
            run_dense(engine, moe_layer_weight(engine, layer, MOE_LAYER_FFN_GATE),
                      moe_layer_weight(engine, layer, MOE_LAYER_FFN_UP),
                      moe_layer_weight(engine, layer, MOE_LAYER_FFN_DOWN), n_rows, b->branch, err);
    }
    return status != MOE_OK ? status : add_branch(engine, n_rows, err);
}

int moe_feed_forward_end(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    if (!moe_layer_has_experts(&engine->config, layer)) {
        return MOE_OK;
    }
    int status = run_experts(engine, pass, layer, err);
    return status != MOE_OK ? status : add_branch(engine, pass->n_rows, err);
}

int moe_feed_forward_note(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    moe_layer_request request = ask_for_layer(engine, pass, layer);
    int status = moe_expert_store_begin(engine->experts, &request, err);
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(engine->experts, b->positions, b->views, &n, err);
    }
    if (status != MOE_OK) {
        moe_expert_store_abandon(engine->experts);
    }
    return status;
}
