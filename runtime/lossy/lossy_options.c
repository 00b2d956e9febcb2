/* SPDX-License-Identifier: MIT */
#include <moe/moe.h>

#include "runtime/lossy/lossy_options.h"

#include "runtime/base/error.h"
#include "runtime/lossy/lossy.h"

bool moe_lossy_is_measured(const moe_engine_options *o)
{
    return o->lab->budget_oracle || o->lab->budget_error;
}

moe_expert_budget moe_lossy_budget(const moe_engine_options *o)
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

moe_buddy_options moe_lossy_buddies(const moe_lossy_options *l)
{
    moe_buddy_options b;
    moe_buddy_options_init(&b);
    b.max_replaced = l->buddies_max_replaced;
    b.search = l->buddies_search;
    b.margin_threshold = l->buddies_margin;
    b.residency_threshold = l->buddies_beta;
    b.novelty = l->buddies_eta;
    b.hop_penalty = l->buddies_kappa;
    b.reuse = l->buddies_reuse;
    b.tae_temperature = l->buddies_temperature;
    b.weight = l->buddies_own_weight ? MOE_BUDDY_OWN : MOE_BUDDY_INHERIT;
    b.drop_unserved = l->buddies_drop;
    b.random = l->buddies_random;
    return b;
}

static int check_buddies(const moe_lossy_options *l, moe_error *err)
{
    const struct {
        const char *field;
        double value, least, most;
    } rows[] = {
        {"buddies_max_replaced", l->buddies_max_replaced, 0, 64},
        {"buddies_max", l->buddies_max, 1, 1024},
        {"buddies_search", l->buddies_search, 0, 1024},
        {"buddies_tae_percentile", l->buddies_tae_percentile, 0, 99},
        {"buddies_alpha", l->buddies_alpha, 1e-6f, 1},
        {"buddies_margin", l->buddies_margin, 0, 2},
        {"buddies_beta", l->buddies_beta, 0, 1},
        {"buddies_eta", l->buddies_eta, 0, 10},
        {"buddies_kappa", l->buddies_kappa, 0, 1},
        {"buddies_epsilon", l->buddies_epsilon, 0, 1e6f},
        {"buddies_temperature", l->buddies_temperature, 0.1f, 10},
        {"buddies_reuse", l->buddies_reuse, 0, 1},
    };
    for (size_t i = 0; l->buddies && i < sizeof rows / sizeof rows[0]; i++) {
        if (!(rows[i].value >= rows[i].least && rows[i].value <= rows[i].most)) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "options.lossy.%s must be %g to %g, not %g",
                            rows[i].field, rows[i].least, rows[i].most, rows[i].value);
        }
    }
    return MOE_OK;
}

/* Refuses options that say how a budget is kept when there is no budget. */
static int check_budget(const moe_engine_options *o, moe_error *err)
{
    const moe_lossy_options *l = o->lossy;
    bool has_settings = l->budget_order != MOE_BUDGET_BY_ROUTER || l->budget_truncates ||
                        l->budget_free_resident || moe_lossy_is_measured(o);
    if (l->expert_budget == 0 && has_settings) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "an expert budget's mode acts on an expert budget, "
                        "and there is none (options.lossy.expert_budget)");
    }
    if (moe_lossy_is_measured(o) && l->budget_free_resident) {
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
    MOE_TRY(check_buddies(o, err));
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

uint32_t moe_lossy_most_buddies(const moe_engine_options *o)
{
    return o->lossy->buddies ? o->lossy->buddies_max : 0;
}
