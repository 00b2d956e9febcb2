/* SPDX-License-Identifier: MIT */
/* Speculation's hook into passes. In draft passes it restricts the rows to resident experts, and
 * records which experts their routers would have chosen (foresight). In other passes it records
 * the routers' choices, and selects the experts that stay in memory for the next draft. */
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/draft/lookahead.h"
#include "runtime/draft/miss_model.h"
#include "runtime/pass/runner.h"

static uint32_t depth_of(const moe_pass *pass, uint32_t row)
{
    return pass->depths != NULL ? pass->depths[row] : 0;
}

/* Marks the resident experts of the layer that the draft may use. */
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

void moe_draft_foresee(moe_speculation *s, const moe_pass *pass, uint32_t layer, uint32_t row,
                       const uint32_t *experts)
{
    uint32_t n_used = s->runner->config->n_expert_used;
    if (s->foresight && !s->is_silent) {
        moe_foresight_add(&s->foresees, layer, depth_of(pass, row), experts, n_used);
        moe_expert_store_foresee(s->runner->experts, layer, s->runner->n_passes, experts, n_used);
    }
}

void moe_draft_residents(const moe_speculation *s, uint32_t layer, bool *resident)
{
    moe_expert_store_residents(s->runner->experts, layer, resident);
    if (s->draft_experts > 0) {
        confine(s, layer, s->runner->config->n_expert, resident);
    }
}

static uint64_t n_distinct(moe_speculation *s, const uint32_t *experts, uint32_t n)
{
    uint32_t n_expert = s->runner->config->n_expert;
    uint64_t found = 0;
    memset(s->resident, 0, n_expert * sizeof *s->resident);
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] < n_expert && !s->resident[experts[i]]) {
            s->resident[experts[i]] = true;
            found++;
        }
    }
    return found;
}

/* Replaces the routers' choices of a draft pass. Foresight records the original choices first. */
static void edit_draft(moe_speculation *s, moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    const moe_model_config *c = runner->config;
    const uint32_t *chosen = runner->buffers.chosen;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        const uint32_t *experts = chosen + (size_t)r * c->n_expert_used;
        if (s->ahead != NULL && s->ahead->drafts) {
            moe_lookahead_name(s, layer, r, experts);
        } else {
            moe_draft_foresee(s, pass, layer, r, experts);
        }
    }
    moe_draft_residents(s, layer, s->resident);
    size_t table = (size_t)layer * c->n_expert * c->n_expert;
    moe_draft_routing routing = {.fill = s->fill,
                                 .affinity = s->affinity != NULL ? s->affinity + table : NULL,
                                 .random = &s->random};
    moe_route_edit edit = moe_route_edit_of(s->rules, runner, pass, layer, s->resident);
    moe_draft_route(&routing, &edit);
    s->n_draft_experts += n_distinct(s, chosen, pass->n_rows * c->n_expert_used);
}

void moe_draft_note_routes(moe_speculation *s, const moe_pass *pass, uint32_t layer)
{
    const uint32_t *chosen = s->runner->buffers.chosen;
    uint32_t n_used = s->runner->config->n_expert_used;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        moe_foresight_score_row(&s->foresees, layer, depth_of(pass, r), chosen + (size_t)r * n_used,
                                n_used);
    }
    if (s->misses != NULL) {
        moe_miss_model_keep_routes(s->misses, layer, pass->n_rows, chosen);
    }
    if (s->ahead != NULL) {
        moe_lookahead_score(s, pass, layer);
    }
}

static int after_routing(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    (void)err;
    moe_speculation *s = context;
    if (pass->kind == MOE_PASS_DRAFT) {
        edit_draft(s, runner, pass, layer);
    } else if (pass->panel != NULL) {
        if (s->misses != NULL) {
            moe_miss_model_chunk(s->misses, layer, pass->n_rows, runner->buffers.chosen);
        }
    } else {
        moe_draft_note_routes(s, pass, layer);
    }
    return MOE_OK;
}

/* Scores the layer's experts at random, but only those that the pass uses, so that no expert is
 * moved for this. */
static void score_experts(moe_speculation *s, const moe_layer_request *request, uint32_t n_expert)
{
    memset(s->score, 0, n_expert * sizeof *s->score);
    /* Experts that were kept for the last draft and are not used now rank below all experts in
     * use. */
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

/* Fills request->keep with the experts of the layer that are to stay in memory for the next
 * draft. */
static void choose_kept(void *context, moe_runner *runner, moe_layer_request *request)
{
    moe_speculation *s = context;
    if (s->misses != NULL) {
        moe_miss_model_layer(s->misses, request);
    }
    if (s->ahead != NULL) {
        moe_lookahead_tell_news(s);
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

static int before_pass(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    moe_speculation *s = context;
    (void)runner;
    (void)pass;
    (void)err;
    if (s->ahead != NULL) {
        moe_lookahead_tell(s);
    }
    return MOE_OK;
}

static void while_loading(void *context, moe_runner *runner, uint32_t layer)
{
    moe_speculation *s = context;
    (void)runner;
    if (s->ahead != NULL) {
        moe_lookahead_read(s, layer);
    }
}

static bool while_waiting(void *context, moe_runner *runner, uint64_t expected_ns)
{
    moe_speculation *s = context;
    (void)runner;
    return s->ahead != NULL && moe_ahead_pieces_run(s, expected_ns);
}

int moe_speculation_attach(moe_speculation *s, const moe_route_rules *rules, moe_error *err)
{
    s->rules = rules;
    s->hook = (moe_pass_hook){.order = MOE_HOOK_DRAFT,
                              .passes = MOE_HOOK_ON_ALL,
                              .wants_probs = true,
                              .needs_host_routing = s->ahead != NULL,
                              .takes_panels = s->ahead == NULL,
                              .context = s,
                              .before_pass = before_pass,
                              .after_routing = after_routing,
                              .on_request = choose_kept,
                              .while_loading = while_loading,
                              .while_waiting = while_waiting};
    if (s->ahead != NULL) {
        moe_pass_hook names = {.order = MOE_HOOK_DRAFT,
                               .passes = MOE_HOOK_ON_DRAFT,
                               .wants_probs = true,
                               .context = s,
                               .after_routing = after_routing};
        MOE_TRY(moe_ahead_pieces_attach(s, &names, err));
    }
    return moe_runner_add_hook(s->runner, &s->hook, err);
}
