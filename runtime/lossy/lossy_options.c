/* SPDX-License-Identifier: MIT */
/* Settings are words and name=value pairs, joined by commas. */
#include "runtime/lossy/lossy_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/lossy/lossy.h"

#define DEFAULT_ALPHA          0.95f
#define DEFAULT_BUDDIES        16u
#define DEFAULT_REPLACED       3u
#define DEFAULT_TAE_PERCENTILE 15u

/* Takes the next item off *text; false at the end. */
static bool next_item(const char **text, char *item, size_t size)
{
    if (**text == '\0') {
        return false;
    }
    size_t n = strcspn(*text, ",");
    size_t copied = n < size ? n : size - 1;
    memcpy(item, *text, copied);
    item[copied] = '\0';
    *text += n + ((*text)[n] == ',');
    return true;
}

static bool number_in(const char *text, double least, double most, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && *value >= least && *value <= most;
}

static bool set_buddy_number(moe_buddy_settings *b, const char *name, const char *text)
{
    double v;
    if (strcmp(name, "rho") == 0 && number_in(text, 0, 64, &v)) {
        b->options.max_replaced = (uint32_t)v;
    } else if (strcmp(name, "alpha") == 0 && number_in(text, 1e-6, 1, &v)) {
        b->alpha = (float)v;
    } else if (strcmp(name, "max") == 0 && number_in(text, 1, 1024, &v)) {
        b->max = (uint32_t)v;
    } else if (strcmp(name, "search") == 0 && number_in(text, 0, 1024, &v)) {
        b->options.search = (uint32_t)v;
    } else if (strcmp(name, "tae") == 0 && number_in(text, 0, 99, &v)) {
        b->tae_percentile = (uint32_t)v;
    } else if (strcmp(name, "margin") == 0 && number_in(text, 0, 2, &v)) {
        b->options.margin_threshold = (float)v;
    } else if (strcmp(name, "beta") == 0 && number_in(text, 0, 1, &v)) {
        b->options.residency_threshold = (float)v;
    } else if (strcmp(name, "eta") == 0 && number_in(text, 0, 10, &v)) {
        b->options.novelty = (float)v;
    } else {
        return false;
    }
    return true;
}

static bool set_buddy_item(moe_buddy_settings *b, char *item)
{
    char *value = strchr(item, '=');
    if (value == NULL) {
        b->options.random |= strcmp(item, "random") == 0;
        return strcmp(item, "random") == 0 || strcmp(item, "on") == 0;
    }
    *value++ = '\0';
    if (strcmp(item, "weight") == 0) {
        b->options.weight = strcmp(value, "own") == 0 ? MOE_BUDDY_OWN : MOE_BUDDY_INHERIT;
        return strcmp(value, "own") == 0 || strcmp(value, "inherit") == 0;
    }
    if (strcmp(item, "missing") == 0) {
        b->options.drop_unserved = strcmp(value, "drop") == 0;
        return b->options.drop_unserved || strcmp(value, "fetch") == 0;
    }
    return set_buddy_number(b, item, value);
}

int moe_buddy_settings_parse(moe_buddy_settings *b, const char *text, moe_error *err)
{
    *b = (moe_buddy_settings){
        .alpha = DEFAULT_ALPHA, .max = DEFAULT_BUDDIES, .tae_percentile = DEFAULT_TAE_PERCENTILE};
    moe_buddy_options_init(&b->options);
    b->options.max_replaced = DEFAULT_REPLACED;
    char item[64];
    const char *all = text;
    while (next_item(&text, item, sizeof item)) {
        char shown[64];
        snprintf(shown, sizeof shown, "%s", item);
        if (!set_buddy_item(b, item)) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "buddy: '%s' in '%s' is not understood; on, random, rho=0..64, "
                            "alpha=(0..1], max=1.., search=, tae=0..99 (percentile; 0: no gate), "
                            "margin=, beta=0..1, eta=, weight=inherit|own, missing=fetch|drop",
                            shown, all);
        }
    }
    return MOE_OK;
}

static bool set_ranking(moe_expert_budget *b, const char *item)
{
    static const char *const names[] = {[MOE_BUDGET_ROUTER] = "router",
                                        [MOE_BUDGET_STATIC] = "static",
                                        [MOE_BUDGET_ORACLE] = "oracle"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(item, names[i]) == 0) {
            b->ranking = (moe_budget_ranking)i;
            return true;
        }
    }
    return false;
}

int moe_budget_settings_parse(moe_expert_budget *b, bool *measured, const moe_engine_options *o,
                              moe_error *err)
{
    *b = (moe_expert_budget){.n_experts = o->expert_budget};
    *measured = false;
    const char *text = o->expert_budget_mode != NULL ? o->expert_budget_mode : "";
    char item[32];
    while (next_item(&text, item, sizeof item)) {
        if (set_ranking(b, item)) {
            *measured |= b->ranking == MOE_BUDGET_ORACLE;
        } else if (strcmp(item, "substitute") == 0 || strcmp(item, "truncate") == 0) {
            b->coverage = item[0] == 's' ? MOE_BUDGET_SUBSTITUTE : MOE_BUDGET_TRUNCATE;
        } else if (strcmp(item, "free") == 0) {
            b->resident_is_free = true;
        } else if (strcmp(item, "error") == 0) {
            *measured = true;
        } else {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "expert budget mode: '%s' is none of router, static, oracle, "
                            "substitute, truncate, free, error",
                            item);
        }
    }
    if (*measured && b->resident_is_free) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "expert budget mode: free cannot go with oracle or error: their exact "
                        "computation brings in what would not be resident");
    }
    return MOE_OK;
}

bool moe_lossy_has_buddies(const moe_engine_options *o)
{
    return o->buddy != NULL && strcmp(o->buddy, "off") != 0;
}

int moe_lossy_check(const moe_engine_options *o, moe_error *err)
{
    moe_expert_budget budget;
    moe_buddy_settings buddies;
    bool measured;
    int status = moe_budget_settings_parse(&budget, &measured, o, err);
    if (status == MOE_OK && moe_lossy_has_buddies(o)) {
        status = moe_buddy_settings_parse(&buddies, o->buddy, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    bool on = o->expert_budget > 0 || moe_lossy_has_buddies(o);
    if (o->expert_budget == 0 && o->expert_budget_mode != NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "an expert budget's mode acts on an expert budget, "
                        "and there is none (options.expert_budget)");
    }
    if (!on && (o->quality_limit != 0.0 || o->quality_share != 0.0)) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "a quality limit or share acts on lossy modes, and none is on "
                        "(options.expert_budget, options.buddy)");
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
    moe_buddy_settings settings = {.max = 0};
    return moe_lossy_has_buddies(o) && moe_buddy_settings_parse(&settings, o->buddy, NULL) == MOE_OK
               ? settings.max
               : 0;
}
