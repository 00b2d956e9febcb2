/* SPDX-License-Identifier: MIT */
#include "runtime/pass/routing.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/runner.h"

/* The most prefetches under way at once: a token's experts of two layers. */
#define MAX_PREFETCHES(n_used) (2 * (n_used))
/* Prefetches may hold at most one slot in this many. */
#define PREFETCH_SLOT_DIVISOR 4

moe_route moe_route_of_layer(const moe_runner *runner, uint32_t layer)
{
    const moe_model_config *c = runner->config;
    const moe_weight *bias = moe_layer_weight(runner, layer, MOE_LAYER_ROUTER_SELECTION_BIAS);
    return (moe_route){.logits = runner->buffers.values[MOE_VALUE_ROUTER_LOGITS],
                       .n_expert = c->n_expert,
                       .n_used = c->n_expert_used,
                       .gate = c->gate,
                       .renormalise = c->gate_renormalise,
                       .scale = c->gate_scale,
                       .selection_bias = bias->data,
                       .expert_scales =
                           moe_layer_weight(runner, layer, MOE_LAYER_EXPERTS_SCALE)->data,
                       .n_group = c->n_group,
                       .n_group_used = c->n_group_used,
                       .group_score = c->group_score};
}

/* Queues the router of the next layer on the stream as it is now, and fills in its route. */
static int queue_prediction(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_route *route,
                            moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    *route = moe_route_of_layer(runner, layer);
    route->logits = b->values[MOE_VALUE_NEXT_LOGITS];
    route->experts = b->predicted;
    route->weights = b->predicted_weights;
    return moe_program_router_ahead(runner, layer, n_rows, err);
}

/* Whether there is a next layer whose router can be asked. */
static bool has_next(const moe_runner *runner, uint32_t layer)
{
    return layer + 1 < runner->config->n_layer &&
           moe_layer_has_experts(runner->config, layer + 1) &&
           !runner->config->layers[layer + 1].by_table;
}

/* The experts of a token in a layer with a table. */
static const uint32_t *experts_of_token(const moe_runner *runner, uint32_t layer, int32_t token)
{
    const moe_weight *table = moe_layer_weight(runner, layer, MOE_LAYER_ROUTER_TABLE);
    MOE_ASSERT((runner->device->features & MOE_DEVICE_READABLE) != 0);
    return (const uint32_t *)table->data + (size_t)token * runner->config->n_expert_used;
}

/* Takes the experts of all rows of a pass from the layer's table. */
static void take_from_table(const moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            uint32_t *experts)
{
    const uint32_t n_used = runner->config->n_expert_used;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        memcpy(experts + (size_t)r * n_used, experts_of_token(runner, layer, pass->tokens[r]),
               n_used * sizeof *experts);
    }
}

int moe_route_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, bool with_next,
                    moe_error *err)
{
    const uint32_t n_rows = pass->n_rows;
    MOE_ASSERT(n_rows > 0 && n_rows <= runner->buffers.max_rows);
    moe_pass_buffers *b = &runner->buffers;
    moe_device *device = runner->device;
    moe_route routes[MOE_MAX_ROUTES] = {moe_route_of_layer(runner, layer)};
    uint32_t n = 1;
    routes[0].experts = b->chosen;
    routes[0].given = runner->config->layers[layer].by_table;
    if (routes[0].given) {
        take_from_table(runner, pass, layer, b->chosen);
    }
    routes[0].weights = b->chosen_weights;
    routes[0].probs = b->router_probs;
    b->routed_ahead_layer = UINT32_MAX;
    if (with_next && device->queues && has_next(runner, layer)) {
        MOE_TRY(queue_prediction(runner, layer + 1, n_rows, &routes[n++], err));
    }
    MOE_TRY(device->ops->route(device, routes, n, n_rows, err));
    if (n > 1) {
        b->routed_ahead_layer = layer + 1;
    }
    return MOE_OK;
}

void moe_request_by_table(moe_runner *runner, const moe_pass *pass)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    for (uint32_t l = 0; l < c->n_table_lead; l++) {
        uint32_t n = 0;
        memset(b->was_predicted, 0, c->n_expert * sizeof *b->was_predicted);
        for (uint32_t r = 0; r < pass->n_rows; r++) {
            const uint32_t *experts = experts_of_token(runner, l, pass->tokens[r]);
            for (uint32_t k = 0; k < c->n_expert_used; k++) {
                if (!b->was_predicted[experts[k]]) {
                    b->was_predicted[experts[k]] = true;
                    b->n_rows_of[n++] = experts[k];
                }
            }
        }
        moe_expert_store_prefetch(runner->experts, l, runner->n_passes, b->n_rows_of, n,
                                  (uint32_t)runner->plan->expert_slots);
    }
}

void moe_order_choice(moe_runner *runner, uint32_t n_rows)
{
    const uint32_t n_used = runner->config->n_expert_used;
    for (uint32_t s = 0; s < n_rows * n_used; s++) {
        uint32_t *experts = runner->buffers.chosen;
        float *weights = runner->buffers.chosen_weights;
        const uint32_t expert = experts[s];
        const float weight = weights[s];
        uint32_t at = s;
        for (; at % n_used > 0 && experts[at - 1] > expert; at--) {
            experts[at] = experts[at - 1];
            weights[at] = weights[at - 1];
        }
        experts[at] = expert;
        weights[at] = weight;
    }
}

/* Sorts the plan's experts by the number of rows that want them, then by id; n is small. */
static void sort_by_demand(const moe_layer_plan *plan, uint32_t *order)
{
    for (uint32_t i = 0; i < plan->n_experts; i++) {
        uint32_t rows = plan->first[i + 1] - plan->first[i];
        uint32_t at = i;
        while (at > 0 && plan->first[order[at - 1] + 1] - plan->first[order[at - 1]] < rows) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

/* Orders a prediction's experts, best first: for one row by its router, else by demand. */
static uint32_t order_prediction(moe_runner *runner, uint32_t n_rows, uint32_t *experts)
{
    moe_pass_buffers *b = &runner->buffers;
    if (n_rows == 1) {
        memcpy(experts, b->predicted, runner->config->n_expert_used * sizeof *experts);
        return runner->config->n_expert_used;
    }
    sort_by_demand(&b->next_plan, experts);
    for (uint32_t i = 0; i < b->next_plan.n_experts; i++) {
        experts[i] = b->next_plan.experts[experts[i]];
    }
    return b->next_plan.n_experts;
}

/* Requests the predicted experts; for a panel, only those that more than one row wants. */
static void prefetch(moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    moe_pass_buffers *b = &runner->buffers;
    const moe_layer_plan *plan = &b->next_plan;
    uint32_t n = order_prediction(runner, pass->n_rows, b->n_rows_of);
    uint64_t wanted = MAX_PREFETCHES(runner->config->n_expert_used);
    if (pass->panel != NULL) {
        uint32_t n_once = 0;
        for (uint32_t i = 0; i < plan->n_experts && pass->n_rows > 1; i++) {
            n_once += plan->first[i + 1] - plan->first[i] == 1;
        }
        n -= n_once; /* these stand last in the order */
        wanted = n;
    }
    uint64_t most = runner->plan->expert_slots / PREFETCH_SLOT_DIVISOR;
    moe_expert_store_prefetch(runner->experts, layer, runner->n_passes, b->n_rows_of, n,
                              (uint32_t)(most < wanted ? most : wanted));
}

int moe_predict_next_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    const uint32_t n_rows = pass->n_rows;
    uint32_t next = layer + 1;
    b->predicted_layer = UINT32_MAX;
    /* A pass requests such experts for all layers at its start; a panel, layer by layer. */
    const bool by_table = next < c->n_table_lead && pass->panel != NULL;
    if (!by_table && !has_next(runner, layer)) {
        return MOE_OK;
    }
    int status = MOE_OK;
    if (by_table) {
        take_from_table(runner, pass, next, b->predicted);
    } else if (b->routed_ahead_layer != next) {
        moe_route route;
        status = queue_prediction(runner, next, n_rows, &route, err);
        if (status == MOE_OK) {
            status = runner->device->ops->route(runner->device, &route, 1, n_rows, err);
        }
    }
    b->routed_ahead_layer = UINT32_MAX;
    if (status != MOE_OK) {
        return status;
    }
    MOE_ASSERT(next < c->n_layer);
    moe_layer_plan_build(&b->next_plan, b->predicted, n_rows, c->n_expert_used);
    memset(b->was_predicted, 0, c->n_expert * sizeof *b->was_predicted);
    for (uint32_t i = 0; i < b->next_plan.n_experts; i++) {
        b->was_predicted[b->next_plan.experts[i]] = true;
    }
    b->predicted_layer = next;
    prefetch(runner, pass, next);
    return MOE_OK;
}

void moe_score_prediction(moe_runner *runner, uint32_t layer)
{
    moe_pass_buffers *b = &runner->buffers;
    if (b->predicted_layer != layer) {
        return;
    }
    for (uint32_t i = 0; i < b->plan.n_experts; i++) {
        runner->n_predicted++;
        runner->n_predicted_right += b->was_predicted[b->plan.experts[i]];
    }
    b->predicted_layer = UINT32_MAX;
}
