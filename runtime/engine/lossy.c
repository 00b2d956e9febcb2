/* SPDX-License-Identifier: MIT */
#include "runtime/engine/lossy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

#define DEFAULT_SHARE          0.02
#define MOST_COMPARED          64u /* rows of a pass; those that follow are not compared */
#define DEFAULT_ALPHA          0.95f
#define DEFAULT_BUDDIES        16u
#define DEFAULT_REPLACED       3u
#define DEFAULT_TAE_PERCENTILE 15u
#define METER_SEED             0x9a11u
#define RANDOM_SEED            0xb0ddu

/* What a buddy setting says beyond moe_buddy_options. */
typedef struct buddy_settings {
    moe_buddy_options options;
    float alpha;
    uint32_t max;
    uint32_t tae_percentile;
} buddy_settings;

/* ---- Settings: words and name=value, joined by commas ---- */

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

static bool set_buddy_number(buddy_settings *b, const char *name, const char *text)
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

static bool set_buddy_item(buddy_settings *b, char *item)
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

static int parse_buddies(buddy_settings *b, const char *text, moe_error *err)
{
    *b = (buddy_settings){
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

/* *measured: layers are computed exactly, too. */
static int parse_budget(moe_expert_budget *b, bool *measured, const moe_engine_options *o,
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

static bool has_buddies(const moe_engine_options *o)
{
    return o->buddy != NULL && strcmp(o->buddy, "off") != 0;
}

int moe_lossy_check(const moe_engine_options *o, moe_error *err)
{
    moe_expert_budget budget;
    buddy_settings buddies;
    bool measured;
    int status = parse_budget(&budget, &measured, o, err);
    if (status == MOE_OK && has_buddies(o)) {
        status = parse_buddies(&buddies, o->buddy, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    bool on = o->expert_budget > 0 || has_buddies(o);
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

/* ---- Opening ---- */

static int need_calibration(const moe_engine *engine, const char *what, moe_error *err)
{
    return engine->calibration != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_ARGUMENT,
                          "%s needs a calibration, and there is none for this model; make one: "
                          "moe-offload calibrate -m %s -f TEXT",
                          what, engine->model_path);
}

static int open_budget(moe_lossy *l, const moe_engine *engine, const moe_engine_options *o,
                       moe_error *err)
{
    const moe_model_config *c = &engine->config;
    bool measured;
    (void)parse_budget(&l->budget, &measured, o, NULL);
    l->has_budget = true;
    if (measured) {
        l->exact = moe_calloc(1, sizeof *l->exact);
        if (l->exact == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for measuring an expert budget");
        }
        l->exact->ranks = l->budget.ranking == MOE_BUDGET_ORACLE;
    }
    if (o->expert_budget < c->n_expert_used) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "an expert budget of %u is below the %u experts that a token uses",
                        o->expert_budget, c->n_expert_used);
    }
    if (l->budget.ranking != MOE_BUDGET_STATIC) {
        return MOE_OK;
    }
    int status = need_calibration(engine, "a static expert budget", err);
    if (status == MOE_OK) {
        l->calibration_counts = engine->calibration->counts;
    }
    return status;
}

static int open_buddies(moe_lossy *l, const moe_engine *engine, const moe_engine_options *o,
                        moe_error *err)
{
    const moe_model_config *c = &engine->config;
    buddy_settings settings;
    (void)parse_buddies(&settings, o->buddy, NULL);
    l->has_buddies = true;
    l->buddy = settings.options;
    l->buddy.random_source = &l->random;
    l->tae_percentile = settings.tae_percentile;
    int status = need_calibration(engine, "buddy substitution", err);
    if (status == MOE_OK) {
        status = moe_engine_need_tables(engine, "buddy substitution", err);
    }
    if (status != MOE_OK) {
        return status;
    }
    l->tae = engine->calibration->tae;
    l->lists = moe_calloc(c->n_layer, sizeof *l->lists);
    if (l->lists == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for buddy lists");
    }
    for (uint32_t i = 0; i < c->n_layer && status == MOE_OK; i++) {
        const float *together =
            engine->calibration->coactivation + (size_t)i * c->n_expert * c->n_expert;
        status = moe_buddy_list_build(&l->lists[i], together, c->n_expert, settings.alpha,
                                      settings.max, 1.0f, err);
    }
    return status;
}

int moe_lossy_open(moe_lossy **out, const moe_engine *engine, const moe_engine_options *o,
                   moe_error *err)
{
    *out = NULL;
    if (o->expert_budget == 0 && !has_buddies(o)) {
        return MOE_OK;
    }
    moe_lossy *l = moe_calloc(1, sizeof *l);
    if (l == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for lossy modes");
    }
    l->n_layer = engine->config.n_layer;
    l->n_expert = engine->config.n_expert;
    l->counts = moe_calloc(l->n_expert, sizeof *l->counts);
    l->scratch = moe_calloc(2 * (size_t)l->n_expert, sizeof *l->scratch);
    moe_random_seed(&l->random, RANDOM_SEED);
    moe_quality_meter_init(&l->meter, o->quality_share > 0.0 ? o->quality_share : DEFAULT_SHARE,
                           o->quality_limit, METER_SEED);
    int status = MOE_OK;
    if (l->counts == NULL || l->scratch == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for lossy modes");
    }
    if (status == MOE_OK && o->expert_budget > 0) {
        status = open_budget(l, engine, o, err);
    }
    if (status == MOE_OK && has_buddies(o)) {
        status = open_buddies(l, engine, o, err);
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
    moe_budget_exact_free(l->exact);
    free(l->counts);
    free(l->scratch);
    free(l->kept);
    free(l);
    *lossy = NULL;
}

/* ---- At work ---- */

bool moe_lossy_acts(const moe_lossy *l)
{
    return l != NULL && !l->meter.exceeded;
}

bool moe_lossy_is_recordable(const moe_lossy *l)
{
    return l != NULL && l->has_buddies && !l->has_budget && !l->buddy.random &&
           l->buddy.novelty == 0.0f && l->exact == NULL;
}

uint32_t moe_lossy_most_buddies(const moe_engine_options *o)
{
    buddy_settings settings = {.max = 0};
    return has_buddies(o) && parse_buddies(&settings, o->buddy, NULL) == MOE_OK ? settings.max : 0;
}

float moe_lossy_tae_threshold(const moe_lossy *l, uint32_t layer)
{
    return l->tae_percentile > 0 ? l->tae[(size_t)layer * MOE_PERCENTILES + l->tae_percentile - 1]
                                 : -1.0f;
}

void moe_lossy_edit(moe_lossy *l, moe_route_edit *edit)
{
    if (l->has_budget) {
        for (uint32_t e = 0; l->calibration_counts != NULL && e < l->n_expert; e++) {
            l->counts[e] = (float)l->calibration_counts[(size_t)edit->layer * l->n_expert + e];
        }
        l->budget.counts = l->counts;
        if (l->budget.ranking == MOE_BUDGET_ORACLE) {
            l->budget.listed = l->exact->list;
            l->budget.n_listed = l->exact->n_list;
        }
        moe_expert_budget_apply(&l->budget, edit, l->scratch, &l->budget_stats);
    }
    if (l->has_buddies) {
        moe_buddy_options options = l->buddy;
        options.tae_threshold = moe_lossy_tae_threshold(l, edit->layer);
        moe_buddy_apply(&l->lists[edit->layer], &options, edit, &l->buddy_stats);
    }
}

static int reserve_kept(moe_lossy *l, size_t n_floats, moe_error *err)
{
    if (n_floats <= l->kept_capacity) {
        return MOE_OK;
    }
    float *bigger = moe_realloc_array(l->kept, n_floats, sizeof *bigger);
    if (bigger == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for comparing with the exact pass");
    }
    l->kept = bigger;
    l->kept_capacity = n_floats;
    return MOE_OK;
}

typedef struct comparison {
    const moe_pass *pass;
    moe_lossy *lossy;
    uint32_t n_vocab;
    uint32_t n_kept; /* of the lossy pass: its first rows */
    uint32_t n_seen; /* of the exact pass */
} comparison;

static bool keep_lossy(uint32_t row, const float *logits, void *user)
{
    comparison *c = user;
    if (c->n_kept < MOST_COMPARED) {
        memcpy(c->lossy->kept + (size_t)c->n_kept++ * c->n_vocab, logits,
               c->n_vocab * sizeof *logits);
    }
    return c->pass->on_logits(row, logits, c->pass->user);
}

static bool compare_exact(uint32_t row, const float *logits, void *user)
{
    comparison *c = user;
    (void)row;
    const float *lossy = c->lossy->kept + (size_t)c->n_seen++ * c->n_vocab;
    moe_quality_meter_add(&c->lossy->meter, logits, lossy, c->n_vocab);
    return c->n_seen < c->n_kept;
}

/* The exact pass keeps its keys and values beside the lossy ones, as another branch of the tree:
 * its row of n is stored n places further on, and so are those of its ancestors that are in the
 * pass. */
static void place_beside(const moe_pass *pass, moe_kv_row *rows, uint32_t *paths)
{
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        const moe_kv_row *from = &pass->kv_rows[r];
        uint32_t depth = pass->depths[r];
        uint32_t base = from->position - depth;
        uint32_t n = 0; /* rows of this timeline */
        for (uint32_t k = 0; k < pass->n_rows; k++) {
            n += pass->kv_rows[k].pages == from->pages;
        }
        for (uint32_t d = 0; d <= depth; d++) {
            paths[d] = moe_kv_row_stored(from, base + d) + n;
        }
        rows[r] = (moe_kv_row){.pages = from->pages,
                               .position = from->position,
                               .stored = from->stored + n,
                               .path = paths,
                               .path_first = base};
        paths += depth + 1;
    }
}

static int run_exact_beside(moe_engine *engine, const moe_pass *pass, comparison *c, moe_error *err)
{
    size_t n_path = 0;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        n_path += pass->depths[r] + 1;
    }
    moe_kv_row *rows = moe_calloc(pass->n_rows, sizeof *rows);
    uint32_t *paths = moe_calloc(n_path, sizeof *paths);
    moe_state_run *runs = moe_calloc(pass->n_state_runs + 1, sizeof *runs);
    int status = MOE_ERR_MEMORY;
    if (rows != NULL && paths != NULL && runs != NULL) {
        for (uint32_t i = 0; i < pass->n_state_runs; i++) {
            runs[i] = pass->state_runs[i];
            runs[i].to = NULL; /* the timeline goes on from the lossy pass */
            runs[i].log = NULL;
        }
        place_beside(pass, rows, paths);
        moe_pass exact = *pass;
        exact.kind = MOE_PASS_EXACT;
        exact.kv_rows = rows;
        exact.state_runs = runs;
        exact.on_logits = compare_exact;
        exact.user = c;
        status = moe_pass_run(&engine->runner, &exact, err);
    } else {
        moe_fail(err, status, "no memory for comparing with the exact pass");
    }
    free(rows);
    free(paths);
    free(runs);
    return status;
}

int moe_metered_pass(moe_engine *engine, const moe_pass *pass, bool must_compare, moe_error *err)
{
    moe_lossy *l = engine->lossy;
    if (!moe_quality_meter_next(&l->meter) && !must_compare) {
        return moe_pass_run(&engine->runner, pass, err);
    }
    uint32_t n_compared = pass->n_logit_rows < MOST_COMPARED ? pass->n_logit_rows : MOST_COMPARED;
    comparison c = {.pass = pass, .lossy = l, .n_vocab = engine->config.n_vocab};
    int status = reserve_kept(l, (size_t)n_compared * c.n_vocab, err);
    moe_pass lossy = *pass;
    lossy.on_logits = keep_lossy;
    lossy.user = &c;
    if (status == MOE_OK) {
        status = moe_pass_run(&engine->runner, &lossy, err);
    }
    return status != MOE_OK || c.n_kept == 0 ? status : run_exact_beside(engine, pass, &c, err);
}

void moe_lossy_get_stats(const moe_lossy *l, moe_lossy_stats *stats)
{
    if (l == NULL) {
        return;
    }
    const moe_budget_stats *b = &l->budget_stats;
    const moe_buddy_stats *y = &l->buddy_stats;
    *stats =
        (moe_lossy_stats){.on = !l->meter.exceeded,
                          .picks = l->has_buddies ? y->n_requested : b->n_picks,
                          .replaced = b->n_replaced + y->n_replaced,
                          .dropped = b->n_dropped + y->n_dropped,
                          .experts_natural = b->n_experts_natural,
                          .experts_used = b->n_experts_used,
                          .mass_kept = b->mass_natural > 0.0 ? b->mass_kept / b->mass_natural : 1.0,
                          .output_error = l->exact != NULL && l->exact->n_layers > 0
                                              ? l->exact->error_sum / (double)l->exact->n_layers
                                              : 0.0,
                          .compared = l->meter.n_sampled,
                          .agreed = l->meter.n_agreed,
                          .mean_kl = moe_quality_meter_mean_kl(&l->meter),
                          .max_kl = l->meter.n_sampled > 0 ? l->meter.kl_max : NAN};
}
