/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/lossy.h"

#include <math.h>
#include <stdlib.h>

#include <moe/lab.h>
#include <moe/moe.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

#define DEFAULT_SHARE 0.02
#define METER_SEED    0x9a11u

/* ---- Options ---- */

const moe_lossy_options moe_lossy_defaults = {.struct_size = sizeof moe_lossy_defaults,
                                              .buddies_max_replaced = 3,
                                              .buddies_own_weight = true,
                                              .buddies_max = 4,
                                              .buddies_tae_percentile = 15,
                                              .buddies_alpha = 0.95f,
                                              .buddies_margin = 2.0f,
                                              .buddies_beta = 1.0f,
                                              .low_bit_below = 1.0f,
                                              .low_bit_share = 0.5,
                                              .buddies_kappa = 1.0f,
                                              .buddies_epsilon = 1.0f,
                                              .buddies_temperature = 1.0f};

static bool is_measured(const moe_engine_options *o)
{
    return o->lab->budget_oracle || o->lab->budget_error;
}

static moe_expert_budget budget_of(const moe_engine_options *o)
{
    const moe_lossy_options *l = o->lossy;
    return (moe_expert_budget){
        .n_experts = l->expert_budget,
        .ranking = o->lab->budget_oracle                          ? MOE_BUDGET_ORACLE
                   : l->budget_order == MOE_BUDGET_BY_CALIBRATION ? MOE_BUDGET_STATIC
                                                                  : MOE_BUDGET_ROUTER,
        .coverage = l->budget_truncates ? MOE_BUDGET_TRUNCATE : MOE_BUDGET_SUBSTITUTE,
        .resident_is_free = l->budget_free_resident};
}

/* Rejects options of an expert budget if there is no budget. */
static int check_budget(const moe_engine_options *o, moe_error *err)
{
    const moe_lossy_options *l = o->lossy;
    bool has_settings = l->budget_order != MOE_BUDGET_BY_ROUTER || l->budget_truncates ||
                        l->budget_free_resident || is_measured(o);
    if (l->expert_budget == 0 && has_settings) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "an expert budget's mode acts on an expert budget, "
                        "and there is none (options.lossy.expert_budget)");
    }
    if (is_measured(o) && l->budget_free_resident) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lossy.budget_free_resident cannot go with "
                        "options.lab.budget_oracle or budget_error: their exact computation "
                        "brings in what would not be resident");
    }
    return MOE_OK;
}

static int check_low_bit(const moe_engine_options *o, moe_error *err)
{
    const moe_lossy_options *l = o->lossy;
    if (!(l->low_bit_below > 0.0f && l->low_bit_below <= 1.0f)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lossy.low_bit_below must be above 0 and at most 1, not %g",
                        (double)l->low_bit_below);
    }
    if (!(l->low_bit_share > 0.0 && l->low_bit_share < 1.0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lossy.low_bit_share must be above 0 and below 1, not %g",
                        l->low_bit_share);
    }
    if (o->lab->offload != MOE_OFFLOAD_AUTO) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lossy.low_bit stands in for experts that a cache lacks, and "
                        "options.lab.offload asks for a baseline without one");
    }
    return MOE_OK;
}

bool moe_lossy_is_asked(const moe_engine_options *o)
{
    return o->lossy->expert_budget > 0 || o->lossy->buddies || o->lossy->low_bit;
}

int moe_lossy_check(const moe_engine_options *options, moe_error *err)
{
    const moe_lossy_options *o = options->lossy;
    MOE_TRY(check_budget(options, err));
    MOE_TRY(moe_buddies_check(o, err));
    if (o->low_bit) {
        MOE_TRY(check_low_bit(options, err));
    }
    if (!moe_lossy_is_asked(options) && (o->quality_limit != 0.0 || o->quality_share != 0.0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a quality limit or share acts on lossy modes, and none is on "
                        "(options.lossy.expert_budget, options.lossy.buddies, "
                        "options.lossy.low_bit)");
    }
    if (!(o->quality_limit >= 0.0) || !(o->quality_share >= 0.0 && o->quality_share <= 1.0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the quality limit is a KL of 0 or more, its share of positions is in "
                        "[0, 1]");
    }
    return MOE_OK;
}

uint32_t moe_lossy_longest_list(const moe_engine_options *o)
{
    return o->lossy->buddies ? o->lossy->buddies_max : 0;
}

/* ---- Opening ---- */

static int open_budget(moe_lossy *l, const moe_engine_options *o, moe_error *err)
{
    const moe_model_config *c = l->parts.runner->config;
    uint32_t n_experts = o->lossy->expert_budget;
    l->budget = budget_of(o);
    l->measured = is_measured(o);
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
        const moe_buddy_parts of = {parts->runner, parts->map, parts->calibration};
        status = moe_buddies_open(&l->buddies, &of, o, err);
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
    moe_buddies_close(&l->buddies);
    free(l->resident);
    free(l->counts);
    free(l->scratch);
    free(l->kept);
    moe_low_bit_free(&l->low_bit);
    free(l);
    *lossy = NULL;
}

/* ---- During a pass ---- */

bool moe_lossy_is_recordable(const moe_lossy *l)
{
    return l != NULL && l->buddies != NULL && moe_buddies_are_substitution(l->buddies) &&
           !l->has_budget && !l->measured && l->low_bit == NULL;
}

moe_substitution moe_lossy_substitution(const moe_lossy *l, uint32_t layer)
{
    return moe_buddies_substitution(l->buddies, layer);
}

void moe_lossy_keep_counts(moe_lossy *l)
{
    moe_buddies_keep_stats(l->buddies);
}

void moe_lossy_forget_counts(moe_lossy *l)
{
    moe_buddies_forget_stats(l->buddies);
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
    if (l->buddies != NULL) {
        moe_buddies_edit(l->buddies, edit);
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
    const moe_buddy_stats y =
        l->buddies != NULL ? *moe_buddies_get_stats(l->buddies) : (moe_buddy_stats){0};
    const moe_low_bit_stats z =
        l->low_bit != NULL ? *moe_low_bit_get_stats(l->low_bit) : (moe_low_bit_stats){0};
    *stats =
        (moe_lossy_stats){.on = !l->meter.exceeded,
                          .picks = l->has_budget        ? b->n_picks /* before it drops any */
                                   : l->buddies != NULL ? y.n_requested
                                                        : z.n_picks,
                          .replaced = b->n_replaced + y.n_replaced,
                          .dropped = b->n_dropped + y.n_dropped,
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
