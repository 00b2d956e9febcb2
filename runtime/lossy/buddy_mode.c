/* SPDX-License-Identifier: MIT */
/* Lossy: buddies as a mode of an engine: its options, its lists by layer, and its counts. */
#include <stdlib.h>

#include <moe/moe.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/lossy/buddy.h"
#include "runtime/lossy/transfer_beta.h"
#include "runtime/pass/runner.h"

#define RANDOM_SEED 0xb0ddu

struct moe_buddies {
    moe_buddy_parts parts;
    moe_buddy_options options;
    moe_buddy_list *lists;   /* [n_layer] */
    uint32_t tae_percentile; /* 0: no gate */
    uint8_t *hops;           /* [n_expert] of the current layer, for hop_penalty < 1; or NULL */
    moe_transfer_beta transfer;
    moe_random random;
    moe_buddy_stats stats, kept;
};

/* ---- Options ---- */

static moe_buddy_options options_of(const moe_lossy_options *l)
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

int moe_buddies_check(const moe_lossy_options *l, moe_error *err)
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

/* ---- Opening ---- */

static int build_lists(moe_buddies *b, const moe_lossy_options *o, moe_error *err)
{
    const moe_model_config *c = b->parts.runner->config;
    const moe_calibration *calibration = b->parts.calibration;
    const float *together =
        o->buddies_weighted ? calibration->coactivation_weighted : calibration->coactivation;
    b->lists = moe_calloc(c->n_layer, sizeof *b->lists);
    if (b->lists == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for buddy lists");
    }
    for (uint32_t i = 0; i < c->n_layer; i++) {
        MOE_TRY(moe_buddy_list_build(&b->lists[i], together + (size_t)i * c->n_expert * c->n_expert,
                                     c->n_expert, o->buddies_alpha, o->buddies_max,
                                     o->buddies_epsilon, err));
    }
    return MOE_OK;
}

static int open_mode(moe_buddies *b, const moe_engine_options *o, moe_error *err)
{
    b->options = options_of(o->lossy);
    b->options.random_source = &b->random;
    b->tae_percentile = o->lossy->buddies_tae_percentile;
    moe_random_seed(&b->random, RANDOM_SEED);
    if (b->parts.calibration == NULL) {
        return moe_calibration_fail_missing("options.lossy.buddies", o, err);
    }
    MOE_TRY(moe_calibration_need_tables(b->parts.calibration, b->parts.runner->model_path,
                                        "buddy substitution", err));
    moe_transfer_beta_init(&b->transfer, o->lossy->buddies_transfer);
    if (b->options.hop_penalty < 1.0f) {
        b->hops = moe_calloc(b->parts.runner->config->n_expert, sizeof *b->hops);
        MOE_TRY(b->hops != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for buddies"));
    }
    return build_lists(b, o->lossy, err);
}

int moe_buddies_open(moe_buddies **out, const moe_buddy_parts *parts, const moe_engine_options *o,
                     moe_error *err)
{
    moe_buddies *b = moe_calloc(1, sizeof *b);
    *out = b;
    if (b == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for buddies");
    }
    b->parts = *parts;
    int status = open_mode(b, o, err);
    if (status != MOE_OK) {
        moe_buddies_close(out);
    }
    return status;
}

void moe_buddies_close(moe_buddies **buddies)
{
    moe_buddies *b = *buddies;
    for (uint32_t i = 0; b != NULL && b->lists != NULL && i < b->parts.runner->config->n_layer;
         i++) {
        moe_buddy_list_free(&b->lists[i]);
    }
    if (b != NULL) {
        free(b->lists);
        free(b->hops);
    }
    free(b);
    *buddies = NULL;
}

/* ---- During a pass ---- */

static float tae_threshold(const moe_buddies *b, uint32_t layer)
{
    const float *percentiles = &b->parts.calibration->tae[(size_t)layer * MOE_PERCENTILES];
    return b->tae_percentile > 0 ? percentiles[b->tae_percentile - 1] : -1.0f;
}

/* Sets beta, the residency gate's threshold for the layer, according to the misses of earlier
 * passes. */
static float follow_budget(moe_buddies *b, const moe_route_edit *edit)
{
    const moe_expert_ref *experts = b->parts.map->layers[edit->layer].experts;
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        bytes += moe_expert_ref_bytes(&experts[e]);
    }
    uint32_t n_requested;
    uint32_t n_missing;
    moe_buddy_count(edit, &n_requested, &n_missing);
    if (n_requested > 0) {
        moe_transfer_beta_note(&b->transfer, edit->layer, n_missing, n_requested,
                               bytes / edit->n_expert);
    }
    float beta = moe_transfer_beta_get(&b->transfer);
    return beta < b->options.residency_threshold ? beta : b->options.residency_threshold;
}

void moe_buddies_edit(moe_buddies *b, moe_route_edit *edit)
{
    moe_buddy_options options = b->options;
    options.tae_threshold = tae_threshold(b, edit->layer);
    if (b->transfer.budget > 0) {
        options.residency_threshold = follow_budget(b, edit);
    }
    if (b->hops != NULL) {
        moe_expert_store_hops(b->parts.runner->experts, edit->layer, b->hops);
        options.hops = b->hops;
    }
    moe_buddy_apply(&b->lists[edit->layer], &options, edit, &b->stats);
}

const moe_buddy_stats *moe_buddies_get_stats(const moe_buddies *b)
{
    return &b->stats;
}

void moe_buddies_keep_stats(moe_buddies *b)
{
    b->kept = b->stats;
}

void moe_buddies_forget_stats(moe_buddies *b)
{
    b->stats = b->kept;
}

bool moe_buddies_are_substitution(const moe_buddies *b)
{
    return !b->options.random && b->options.novelty == 0.0f && b->options.reuse == 0.0f &&
           b->hops == NULL && b->transfer.budget == 0;
}

moe_substitution moe_buddies_substitution(const moe_buddies *b, uint32_t layer)
{
    const moe_buddy_options *o = &b->options;
    return (moe_substitution){.count = b->lists[layer].count,
                              .lists = b->lists[layer].buddies,
                              .max = b->lists[layer].max,
                              .max_replaced = o->max_replaced,
                              .search = o->search,
                              .entropy_threshold = tae_threshold(b, layer),
                              .entropy_temperature = o->tae_temperature,
                              .margin_threshold = o->margin_threshold,
                              .missing_threshold = o->residency_threshold,
                              .own_weight = o->weight == MOE_BUDDY_OWN,
                              .drop_unserved = o->drop_unserved};
}
