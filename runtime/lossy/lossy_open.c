/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/lossy.h"

#include <math.h>
#include <stdlib.h>

#include <moe/moe.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/lossy/lossy_options.h"
#include "runtime/pass/runner.h"

#define DEFAULT_SHARE 0.02
#define METER_SEED    0x9a11u
#define RANDOM_SEED   0xb0ddu

/* ---- Opening ---- */

static int open_budget(moe_lossy *l, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = l->parts.runner->config;
    uint32_t n_experts = o->lossy->expert_budget;
    l->budget = moe_lossy_budget(o);
    l->measured = moe_lossy_is_measured(o);
    l->has_budget = true;
    if (n_experts < c->n_expert_used) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "an expert budget of %u is below the %u experts that a token uses",
                        n_experts, c->n_expert_used);
    }
    if (l->budget.ranking != MOE_BUDGET_STATIC) {
        return MOE_OK;
    }
    if (l->parts.calibration == NULL) {
        return moe_calibration_fail_missing("options.lossy.budget_order static", o, err);
    }
    l->calibration_counts = l->parts.calibration->counts;
    return MOE_OK;
}

static int open_buddies(moe_lossy *l, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = l->parts.runner->config;
    const moe_calibration *calibration = l->parts.calibration;
    const moe_lossy_options *settings = o->lossy;
    l->has_buddies = true;
    l->buddy = moe_lossy_buddies(settings);
    l->buddy.random_source = &l->random;
    l->tae_percentile = settings->buddies_tae_percentile;
    int status = calibration == NULL
                     ? moe_calibration_fail_missing("options.lossy.buddies", o, err)
                     : moe_calibration_need_tables(calibration, l->parts.runner->model_path,
                                                   "buddy substitution", err);
    if (status != MOE_OK) {
        return status;
    }
    l->tae = calibration->tae;
    moe_transfer_beta_init(&l->transfer, settings->buddies_transfer);
    if (l->buddy.hop_penalty < 1.0f) {
        l->hops = moe_calloc(c->n_expert, sizeof *l->hops);
        status = l->hops != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for buddies");
    }
    l->lists = moe_calloc(c->n_layer, sizeof *l->lists);
    if (l->lists == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for buddy lists");
    }
    for (uint32_t i = 0; i < c->n_layer && status == MOE_OK; i++) {
        const float *together = (settings->buddies_weighted ? calibration->coactivation_weighted
                                                            : calibration->coactivation) +
                                (size_t)i * c->n_expert * c->n_expert;
        status = moe_buddy_list_build(&l->lists[i], together, c->n_expert, settings->buddies_alpha,
                                      settings->buddies_max, settings->buddies_epsilon, err);
    }
    return status;
}

int moe_lossy_open(moe_lossy **out, const moe_lossy_parts *parts, const moe_engine_options *o,
                   moe_error *err)
{
    *out = NULL;
    if (!moe_lossy_is_asked(o)) {
        return MOE_OK;
    }
    double share = o->lossy->quality_share;
    moe_lossy *l = moe_calloc(1, sizeof *l);
    if (l == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for lossy modes");
    }
    l->parts = *parts;
    l->n_layer = parts->runner->config->n_layer;
    l->n_expert = parts->runner->config->n_expert;
    l->resident = moe_calloc(l->n_expert, sizeof *l->resident);
    l->counts = moe_calloc(l->n_expert, sizeof *l->counts);
    l->scratch = moe_calloc(2 * (size_t)l->n_expert, sizeof *l->scratch);
    moe_random_seed(&l->random, RANDOM_SEED);
    moe_quality_meter_init(&l->meter, share > 0.0 ? share : DEFAULT_SHARE, o->lossy->quality_limit,
                           METER_SEED);
    int status = MOE_OK;
    if (l->resident == NULL || l->counts == NULL || l->scratch == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for lossy modes");
    }
    if (status == MOE_OK && o->lossy->expert_budget > 0) {
        status = open_budget(l, o, err);
    }
    if (status == MOE_OK && o->lossy->buddies) {
        status = open_buddies(l, o, err);
    }
    if (status == MOE_OK && parts->copies != NULL) {
        status = moe_low_bit_create(&l->low_bit, parts->runner, parts->copies,
                                    o->lossy->low_bit_below, err);
    }
    if (status != MOE_OK) {
        moe_lossy_close(&l);
        return status;
    }
    *out = l;
    return MOE_OK;
}

void moe_lossy_close(moe_lossy **lossy)
{
    moe_lossy *l = *lossy;
    if (l == NULL) {
        return;
    }
    for (uint32_t i = 0; l->lists != NULL && i < l->n_layer; i++) {
        moe_buddy_list_free(&l->lists[i]);
    }
    free(l->lists);
    free(l->resident);
    free(l->hops);
    free(l->counts);
    free(l->scratch);
    free(l->kept);
    moe_low_bit_free(&l->low_bit);
    free(l);
    *lossy = NULL;
}

/* ---- At work ---- */

bool moe_lossy_is_recordable(const moe_lossy *l)
{
    return l != NULL && l->has_buddies && !l->has_budget && !l->buddy.random &&
           l->buddy.novelty == 0.0f && l->buddy.reuse == 0.0f && l->hops == NULL &&
           l->transfer.budget == 0 && !l->measured && l->low_bit == NULL;
}

float moe_lossy_tae_threshold(const moe_lossy *l, uint32_t layer)
{
    return l->tae_percentile > 0 ? l->tae[(size_t)layer * MOE_PERCENTILES + l->tae_percentile - 1]
                                 : -1.0f;
}

/* Sets the layer's beta by the misses of earlier passes. */
static float follow_budget(moe_lossy *l, const moe_route_edit *edit)
{
    const moe_expert_ref *experts = l->parts.map->layers[edit->layer].experts;
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < l->n_expert; e++) {
        bytes += moe_expert_ref_bytes(&experts[e]);
    }
    uint32_t n_requested;
    uint32_t n_missing;
    moe_buddy_count(edit, &n_requested, &n_missing);
    if (n_requested > 0) {
        moe_transfer_beta_note(&l->transfer, edit->layer, n_missing, n_requested,
                               bytes / l->n_expert);
    }
    float beta = moe_transfer_beta_get(&l->transfer);
    return beta < l->buddy.residency_threshold ? beta : l->buddy.residency_threshold;
}

static void edit_layer(moe_lossy *l, moe_route_edit *edit)
{
    if (l->has_budget) {
        for (uint32_t e = 0; l->calibration_counts != NULL && e < l->n_expert; e++) {
            l->counts[e] = (float)l->calibration_counts[(size_t)edit->layer * l->n_expert + e];
        }
        l->budget.counts = l->counts;
        moe_expert_budget_apply(&l->budget, edit, l->scratch, &l->budget_stats);
    }
    if (l->has_buddies) {
        moe_buddy_options options = l->buddy;
        options.tae_threshold = moe_lossy_tae_threshold(l, edit->layer);
        if (l->transfer.budget > 0) {
            options.residency_threshold = follow_budget(l, edit);
        }
        if (l->hops != NULL) {
            moe_expert_store_hops(l->parts.runner->experts, edit->layer, l->hops);
            options.hops = l->hops;
        }
        moe_buddy_apply(&l->lists[edit->layer], &options, edit, &l->buddy_stats);
    }
}

void moe_lossy_edit_routes(moe_lossy *l, const moe_pass *pass, uint32_t layer, const bool *resident)
{
    if (resident == NULL) {
        moe_expert_store_residents(l->parts.runner->experts, layer, l->resident);
        resident = l->resident;
    }
    moe_route_edit edit = moe_route_edit_of(l->rules, l->parts.runner, pass, layer, resident);
    edit_layer(l, &edit);
}

static int after_routing(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err)
{
    (void)runner;
    (void)err;
    moe_lossy_edit_routes(context, pass, layer, NULL);
    return MOE_OK;
}

int moe_lossy_attach(moe_lossy *l, const moe_route_rules *rules, moe_error *err)
{
    l->rules = rules;
    l->hook = (moe_pass_hook){.order = MOE_HOOK_EDIT,
                              .passes = MOE_HOOK_ON_LOSSY | MOE_HOOK_ON_REHEARSAL,
                              .wants_probs = true,
                              .context = l,
                              .after_routing = after_routing};
    MOE_TRY(moe_runner_add_hook(l->parts.runner, &l->hook, err));
    return l->low_bit != NULL ? moe_low_bit_attach(l->low_bit, err) : MOE_OK;
}

void moe_lossy_get_stats(const moe_lossy *l, moe_lossy_stats *stats)
{
    if (l == NULL) {
        return;
    }
    const moe_budget_stats *b = &l->budget_stats;
    const moe_buddy_stats *y = &l->buddy_stats;
    const moe_low_bit_stats z =
        l->low_bit != NULL ? *moe_low_bit_get_stats(l->low_bit) : (moe_low_bit_stats){0};
    *stats =
        (moe_lossy_stats){.on = !l->meter.exceeded,
                          .picks = l->has_budget    ? b->n_picks /* before it drops any */
                                   : l->has_buddies ? y->n_requested
                                                    : z.n_picks,
                          .replaced = b->n_replaced + y->n_replaced,
                          .dropped = b->n_dropped + y->n_dropped,
                          .experts_natural = b->n_experts_natural,
                          .experts_used = b->n_experts_used,
                          .mass_kept = b->mass_natural > 0.0 ? b->mass_kept / b->mass_natural : 1.0,
                          .compared = l->meter.n_sampled,
                          .agreed = l->meter.n_agreed,
                          .low_bit_picks = z.n_stood,
                          .low_bit_experts = z.n_experts,
                          .low_bit_mass = z.mass > 0.0 ? z.mass_stood / z.mass : 0.0,
                          .mean_kl = moe_quality_meter_mean_kl(&l->meter),
                          .max_kl = l->meter.n_sampled > 0 ? l->meter.kl_max : NAN};
}
