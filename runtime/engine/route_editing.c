/* SPDX-License-Identifier: MIT */
#include "runtime/engine/route_editing.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/lossy.h"
#include "runtime/draft/miss_model.h"
#include "runtime/engine/speculation.h"

static uint32_t depth_of(const moe_pass *pass, uint32_t row)
{
    return pass->depths != NULL ? pass->depths[row] : 0;
}

static moe_route_edit edit_of(moe_engine *engine, const moe_pass *pass, uint32_t layer)
{
    return (moe_route_edit){.layer = layer,
                            .n_rows = pass->n_rows,
                            .n_expert = engine->config.n_expert,
                            .n_used = engine->config.n_expert_used,
                            .experts = engine->runner.buffers.chosen,
                            .weights = engine->runner.buffers.chosen_weights,
                            .probs = engine->runner.buffers.router_probs,
                            .resident = engine->routes->resident,
                            .mixing = engine->routes->mixing[layer]};
}

/* Of the resident experts, those that the draft is confined to. */
static void confine(const moe_speculation *s, uint32_t layer, uint32_t n_expert, bool *resident)
{
    const uint32_t *pinned = s->pinned + (size_t)layer * n_expert;
    for (uint32_t e = 0; e < n_expert; e++) {
        bool is_pinned = false;
        for (uint32_t i = 0; i < s->n_pinned[layer]; i++) {
            is_pinned |= pinned[i] == e;
        }
        resident[e] &= is_pinned;
    }
}

void moe_edit_foresee(moe_engine *engine, const moe_pass *pass, uint32_t layer, uint32_t row,
                      const uint32_t *experts)
{
    moe_speculation *s = engine->speculation;
    uint32_t n_used = engine->config.n_expert_used;
    if (s->foresight) {
        moe_foresight_add(&s->foresees, layer, depth_of(pass, row), experts, n_used);
        moe_expert_store_foresee(engine->runner.experts, layer, engine->runner.n_passes, experts,
                                 n_used);
    }
}

void moe_edit_find_residents(moe_engine *engine, uint32_t layer)
{
    const moe_speculation *s = engine->speculation;
    moe_expert_store_residents(engine->runner.experts, layer, engine->routes->resident);
    if (s->draft_experts > 0) {
        confine(s, layer, engine->config.n_expert, engine->routes->resident);
    }
}

/* The natural choices go to foresight before they are replaced. */
static void edit_draft(moe_engine *engine, const moe_pass *pass, uint32_t layer)
{
    moe_speculation *s = engine->speculation;
    const moe_model_config *c = &engine->config;
    const uint32_t *chosen = engine->runner.buffers.chosen;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        moe_edit_foresee(engine, pass, layer, r, chosen + (size_t)r * c->n_expert_used);
    }
    moe_edit_find_residents(engine, layer);
    size_t table = (size_t)layer * c->n_expert * c->n_expert;
    moe_draft_routing routing = {.fill = s->fill,
                                 .affinity = s->affinity != NULL ? s->affinity + table : NULL,
                                 .random = &s->random};
    moe_route_edit edit = edit_of(engine, pass, layer);
    moe_draft_route(&routing, &edit);
}

static void score_foresight(moe_engine *engine, const moe_pass *pass, uint32_t layer)
{
    uint32_t n_used = engine->config.n_expert_used;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        moe_foresight_score_row(&engine->speculation->foresees, layer, depth_of(pass, r),
                                engine->runner.buffers.chosen + (size_t)r * n_used, n_used);
    }
}

void moe_edit_routes_by(moe_engine *engine, const moe_pass *pass, uint32_t layer,
                        const bool *resident)
{
    if (pass->kind == MOE_PASS_DRAFT) {
        edit_draft(engine, pass, layer);
        return;
    }
    if (engine->speculation != NULL) {
        score_foresight(engine, pass, layer);
        if (engine->speculation->misses != NULL) {
            moe_miss_model_keep_routes(engine->speculation->misses, layer, pass->n_rows,
                                       engine->runner.buffers.chosen);
        }
    }
    if (pass->kind == MOE_PASS_LOSSY) {
        moe_route_edit edit = edit_of(engine, pass, layer);
        if (resident != NULL) {
            edit.resident = resident;
        } else {
            moe_expert_store_residents(engine->runner.experts, layer, engine->routes->resident);
        }
        moe_lossy_edit(engine->lossy, &edit);
    }
}

static int edit_routes(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                       moe_error *err)
{
    (void)runner;
    (void)err;
    moe_edit_routes_by(context, pass, layer, NULL);
    return MOE_OK;
}

/* Random ones are drawn from those that the layer uses, so that no byte moves for them either. */
static void score_experts(moe_speculation *s, const moe_layer_request *request, uint32_t n_expert)
{
    memset(s->score, 0, n_expert * sizeof *s->score);
    /* What was kept before and is not used now comes after all that is. */
    const uint32_t *before = s->pinned + (size_t)request->layer * n_expert;
    for (uint32_t i = 0; i < s->n_pinned[request->layer]; i++) {
        s->score[before[i]] = 0.5f;
    }
    for (uint32_t i = 0; i < request->n; i++) {
        s->score[request->experts[i]] = s->pin == MOE_DRAFT_PIN_RANDOM
                                            ? 1.0f + (float)moe_random_uniform(&s->random)
                                            : (float)request->n_rows[i];
    }
}

/* Which experts of the layer stay for the next draft: fills request->keep. */
static void choose_kept(void *context, moe_runner *runner, moe_layer_request *request)
{
    moe_speculation *s = ((moe_engine *)context)->speculation;
    if (s == NULL) {
        return;
    }
    if (s->misses != NULL) {
        moe_miss_model_layer(s->misses, request);
    }
    request->verifies = s->foresees.any;
    moe_foresight_score(&s->foresees, request->layer, request->experts, request->n);
    if (s->draft_experts == 0 || s->pin == MOE_DRAFT_PIN_HOT_GLOBAL) {
        return;
    }
    uint32_t n_expert = runner->config->n_expert;
    uint32_t *pinned = s->pinned + (size_t)request->layer * n_expert;
    score_experts(s, request, n_expert);
    uint32_t n = moe_draft_hottest(s->score, n_expert, s->draft_experts, pinned);
    while (n > 0 && s->score[pinned[n - 1]] == 0.0f) {
        n--;
    }
    s->n_pinned[request->layer] = n;
    request->keep = pinned;
    request->n_keep = n;
}

/* ---- Opening ---- */

static int load_bias(moe_route_editor *editor, moe_engine *engine, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    int status = MOE_OK;
    for (uint32_t l = 0; l < c->n_layer && status == MOE_OK; l++) {
        const float *bias = engine->weights.layers[l].tensors[MOE_LAYER_ROUTER_SELECTION_BIAS].data;
        if (bias == NULL) {
            continue;
        }
        float *copy = editor->bias + (size_t)l * c->n_expert;
        status = engine->device->ops->download(engine->device, copy, bias,
                                               c->n_expert * sizeof *copy, err);
        editor->mixing[l].selection_bias = copy;
    }
    return status;
}

void moe_route_editor_close(moe_route_editor **editor)
{
    if (*editor != NULL) {
        free((*editor)->mixing);
        free((*editor)->bias);
        free((*editor)->resident);
        free(*editor);
        *editor = NULL;
    }
}

int moe_route_editor_open(moe_route_editor **out, moe_engine *engine, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    *out = NULL;
    moe_route_editor *editor = moe_calloc(1, sizeof *editor);
    if (editor != NULL) {
        editor->mixing = moe_calloc(c->n_layer, sizeof *editor->mixing);
        editor->bias = moe_calloc((size_t)c->n_layer * c->n_expert, sizeof *editor->bias);
        editor->resident = moe_calloc(c->n_expert, sizeof *editor->resident);
    }
    if (editor == NULL || editor->mixing == NULL || editor->bias == NULL ||
        editor->resident == NULL) {
        moe_route_editor_close(&editor);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for editing routes");
    }
    for (uint32_t l = 0; l < c->n_layer; l++) {
        /* A softmax over the selected logits is the softmax over all, renormalised. */
        bool renormalise = c->gate_renormalise || c->gate == MOE_GATE_SOFTMAX_SELECTED;
        editor->mixing[l] = (moe_mixing_rule){.renormalise = renormalise, .scale = c->gate_scale};
    }
    editor->hook = (moe_pass_hook){.order = MOE_HOOK_EDIT,
                                   .passes = MOE_HOOK_ON_ALL,
                                   .wants_probs = true,
                                   .context = engine,
                                   .after_routing = edit_routes,
                                   .on_request = choose_kept};
    int status = load_bias(editor, engine, err);
    if (status == MOE_OK) {
        status = moe_runner_add_hook(&engine->runner, &editor->hook, err);
    }
    if (status != MOE_OK) {
        moe_route_editor_close(&editor);
        return status;
    }
    *out = editor;
    return MOE_OK;
}
