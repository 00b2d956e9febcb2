/* SPDX-License-Identifier: MIT */
#include "runtime/lossy/buddy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

void moe_buddy_list_free(moe_buddy_list *list)
{
    free(list->count);
    free(list->buddies);
    free(list->q);
    *list = (moe_buddy_list){0};
}

/* Finds the `max` best buddies j for one expert, by descending weight; of equal weights, the
 * lower id first. */
static uint32_t best_buddies(const float *row, uint32_t n_expert, uint32_t self, uint32_t max,
                             uint16_t *out)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < n_expert; j++) {
        if (j == self || (n == max && !(row[j] > row[out[n - 1]]))) {
            continue;
        }
        uint32_t at = n < max ? n++ : n - 1;
        while (at > 0 && row[j] > row[out[at - 1]]) {
            out[at] = out[at - 1];
            at--;
        }
        out[at] = (uint16_t)j;
    }
    return n;
}

static void build_row(moe_buddy_list *list, const float *row, uint32_t self, float alpha,
                      float epsilon)
{
    uint16_t *buddies = list->buddies + (size_t)self * list->max;
    float *q = list->q + (size_t)self * list->max;
    double total = 0.0;
    for (uint32_t j = 0; j < list->n_expert; j++) {
        total += j != self ? (double)row[j] + epsilon : 0.0;
    }
    uint32_t n = best_buddies(row, list->n_expert, self, list->max, buddies);
    double held = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        /* If the expert was never used together with another one and epsilon is 0, all other
         * experts are equally likely. */
        double share =
            total > 0.0 ? ((double)row[buddies[i]] + epsilon) / total : 1.0 / (list->n_expert - 1);
        q[i] = (float)share;
        held += share;
        list->count[self] = i + 1;
        if ((float)held >= alpha) { /* compared as float, because 0.4f is more than 0.4 */
            break;
        }
    }
}

static int check_input(const float *coactivation, uint32_t n_expert, float alpha, uint32_t max,
                       float epsilon, moe_error *err)
{
    if (n_expert < 2 || n_expert > UINT16_MAX) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "buddies need 2 to 65535 experts, not %u", n_expert);
    }
    if (!(alpha > 0.0f && alpha <= 1.0f) || max == 0 || !(epsilon >= 0.0f && isfinite(epsilon))) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "buddies: coverage %g should be in (0, 1], at most %u at least 1, "
                        "smoothing %g at least 0",
                        (double)alpha, max, (double)epsilon);
    }
    for (size_t i = 0; i < (size_t)n_expert * n_expert; i++) {
        if (i / n_expert != i % n_expert &&
            !(coactivation[i] >= 0.0f && isfinite(coactivation[i]))) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "buddies: co-activation of experts %zu and %zu is %g; calibrate again",
                            i / n_expert, i % n_expert, (double)coactivation[i]);
        }
    }
    return MOE_OK;
}

int moe_buddy_list_build(moe_buddy_list *list, const float *coactivation, uint32_t n_expert,
                         float alpha, uint32_t max, float epsilon, moe_error *err)
{
    *list = (moe_buddy_list){0};
    MOE_TRY(check_input(coactivation, n_expert, alpha, max, epsilon, err));
    max = max < n_expert ? max : n_expert - 1;
    *list = (moe_buddy_list){.n_expert = n_expert, .max = max};
    list->count = moe_calloc(n_expert, sizeof *list->count);
    list->buddies = moe_calloc((size_t)n_expert * max, sizeof *list->buddies);
    list->q = moe_calloc((size_t)n_expert * max, sizeof *list->q);
    if (list->count == NULL || list->buddies == NULL || list->q == NULL) {
        moe_buddy_list_free(list);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for buddies of %u experts", n_expert);
    }
    for (uint32_t i = 0; i < n_expert; i++) {
        build_row(list, coactivation + (size_t)i * n_expert, i, alpha, epsilon);
    }
    return MOE_OK;
}

void moe_buddy_options_init(moe_buddy_options *options)
{
    *options = (moe_buddy_options){.max_replaced = 3,
                                   .tae_threshold = -1.0f,
                                   .margin_threshold = 2.0f,
                                   .tae_temperature = 1.0f,
                                   .hop_penalty = 1.0f,
                                   .residency_threshold = 1.0f};
}

/* Returns the entropy of the probabilities of those picks that name an expert (below n_expert),
 * divided by its maximum; 0 for a single pick. */
static double entropy_of(const float *probs, const uint32_t *experts, uint32_t k, uint32_t n_expert,
                         float temperature)
{
    double power = 1.0 / temperature;
    double sum = 0.0;
    double entropy = 0.0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < k; i++) {
        sum += experts[i] < n_expert ? pow(probs[experts[i]], power) : 0.0;
        n += experts[i] < n_expert;
    }
    for (uint32_t i = 0; i < k; i++) {
        double p = experts[i] < n_expert ? pow(probs[experts[i]], power) / sum : 0.0;
        entropy -= p > 0.0 ? p * log(p) : 0.0;
    }
    return n > 1 ? entropy / log(n) : 0.0;
}

float moe_routing_entropy(const float *probs, const uint32_t *experts, uint32_t k,
                          float temperature)
{
    return (float)entropy_of(probs, experts, k, MOE_EXPERT_NONE, temperature);
}

/* ---- Replacing experts in a pass ---- */

typedef struct row_work {
    const moe_buddy_list *list;
    const moe_buddy_options *options;
    moe_route_edit *edit;
    moe_buddy_stats *stats;
    const float *probs;
    uint32_t *experts;
    float *weights;
} row_work;

static bool serves(const row_work *w, uint32_t expert)
{
    for (uint32_t k = 0; k < w->edit->n_used; k++) {
        if (w->experts[k] == expert) {
            return true;
        }
    }
    return false;
}

static void two_greatest(float p, float best[2])
{
    best[1] = p > best[0] ? best[0] : p > best[1] ? p : best[1];
    best[0] = p > best[0] ? p : best[0];
}

/* Returns the difference between the largest and the second largest probability of the picks,
 * renormalised. A single pick has no second one, so its margin is taken over all experts of the
 * router. */
static double margin_of(const row_work *w, uint32_t n_picks)
{
    float best[2] = {0.0f, 0.0f};
    double sum = 0.0;
    for (uint32_t e = 0; n_picks == 1 && e < w->edit->n_expert; e++) {
        two_greatest(w->probs[e], best);
    }
    for (uint32_t k = 0; n_picks > 1 && k < w->edit->n_used; k++) {
        if (w->experts[k] < w->edit->n_expert) {
            two_greatest(w->probs[w->experts[k]], best);
            sum += w->probs[w->experts[k]];
        }
    }
    return (double)(best[0] - best[1]) / (n_picks == 1 ? 1.0 : sum);
}

static bool is_gated(const row_work *w, uint32_t n_picks)
{
    const moe_buddy_options *o = w->options;
    if (n_picks > 1 && o->tae_threshold >= 0.0f &&
        (float)entropy_of(w->probs, w->experts, w->edit->n_used, w->edit->n_expert,
                          o->tae_temperature) <= o->tae_threshold) {
        return true;
    }
    return margin_of(w, n_picks) >= o->margin_threshold;
}

/* Computes mean and standard deviation of the row's log probabilities. They serve to standardise
 * the router's logits. */
static void standardise(const row_work *w, double *mean, double *deviation)
{
    double sum = 0.0;
    double squares = 0.0;
    for (uint32_t e = 0; e < w->edit->n_expert; e++) {
        double z = log((double)w->probs[e] + 1e-30);
        sum += z;
        squares += z * z;
    }
    double n = w->edit->n_expert;
    *mean = sum / n;
    double variance = squares / n - *mean * *mean;
    *deviation = variance > 1e-12 ? sqrt(variance) : 1e-6;
}

static uint32_t hops_of(const row_work *w, uint32_t expert)
{
    const uint8_t *hops = w->options->hops;
    return hops != NULL ? hops[expert] : w->edit->resident[expert] ? 0 : 2;
}

/* Returns the factor on a buddy's score for its distance (hops) and for being in the row already;
 * 0: it must not be used. */
static double discount_of(const row_work *w, uint32_t buddy, uint32_t missing_hops)
{
    uint32_t hops = hops_of(w, buddy);
    double near = 1.0 - (double)w->options->hop_penalty * hops;
    return hops < missing_hops && near > 0.0 ? near * (serves(w, buddy) ? w->options->reuse : 1.0)
                                             : 0.0;
}

/* Returns the best allowed buddy. The list is ordered by q, so if scores have no further factors
 * this is the first allowed one. */
static uint32_t find_buddy(const row_work *w, uint32_t missing)
{
    const moe_buddy_list *list = w->list;
    const moe_buddy_options *o = w->options;
    uint32_t n = list->count[missing];
    n = o->search > 0 && o->search < n ? o->search : n;
    uint32_t best = MOE_EXPERT_NONE;
    double best_score = -INFINITY;
    double mean = 0.0;
    double deviation = 1.0;
    if (o->novelty != 0.0f) {
        standardise(w, &mean, &deviation);
    }
    uint32_t missing_hops = hops_of(w, missing);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = list->buddies[(size_t)missing * list->max + i];
        double discount = discount_of(w, j, missing_hops);
        if (!(discount > 0.0)) {
            continue;
        }
        double z = o->novelty != 0.0f ? (log((double)w->probs[j] + 1e-30) - mean) / deviation : 0.0;
        double score = list->q[(size_t)missing * list->max + i] * (1.0 + o->novelty * z);
        score = score >= 0.0 ? score * discount : score / discount;
        if (score > best_score) {
            best = j;
            best_score = score;
        }
    }
    return best;
}

static uint32_t find_random(const row_work *w)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < w->edit->n_expert; e++) {
        n += w->edit->resident[e] && !serves(w, e);
    }
    uint32_t left = n > 0 ? (uint32_t)(moe_random_next(w->options->random_source) % n) : 0;
    for (uint32_t e = 0; n > 0 && e < w->edit->n_expert; e++) {
        if (w->edit->resident[e] && !serves(w, e) && left-- == 0) {
            return e;
        }
    }
    return MOE_EXPERT_NONE;
}

/* Puts the buddy at this rank. If the row has the buddy already, the buddy keeps its own rank,
 * and this rank is dropped. */
static void take_buddy(row_work *w, uint32_t rank, uint32_t buddy)
{
    uint32_t at = 0;
    while (at < w->edit->n_used && w->experts[at] != buddy) {
        at++;
    }
    w->experts[rank] = at < w->edit->n_used ? MOE_EXPERT_NONE : buddy;
    if (at < w->edit->n_used) {
        w->weights[at] += w->weights[rank];
        w->weights[rank] = 0.0f;
        w->stats->n_reused++;
    }
}

/* Replaces the missing experts of a row. With OWN, the row's weights are then computed by the
 * model's rule from its new experts; dropped ranks get 0. */
static void edit_row(row_work *w, uint32_t row)
{
    uint32_t n_replaced = 0;
    bool changed = false;
    for (uint32_t k = 0; k < w->edit->n_used; k++) {
        uint32_t wanted = w->experts[k];
        if (wanted >= w->edit->n_expert || w->edit->resident[wanted] ||
            n_replaced >= w->options->max_replaced) {
            continue;
        }
        uint32_t buddy = w->options->random ? find_random(w) : find_buddy(w, wanted);
        if (buddy != MOE_EXPERT_NONE) {
            take_buddy(w, k, buddy);
            n_replaced++;
            changed = true;
            continue;
        }
        w->stats->n_unserved++;
        if (w->options->drop_unserved) {
            w->experts[k] = MOE_EXPERT_NONE;
            w->weights[k] = 0.0f;
            w->stats->n_dropped++;
        }
    }
    w->stats->n_replaced += n_replaced;
    if (changed && w->options->weight == MOE_BUDDY_OWN) {
        moe_route_edit_weigh(w->edit, row);
    }
}

static uint32_t count_missing(const moe_route_edit *edit, uint32_t row, uint32_t *n_requested)
{
    const uint32_t *experts = edit->experts + (size_t)row * edit->n_used;
    uint32_t n_missing = 0;
    *n_requested = 0;
    for (uint32_t k = 0; k < edit->n_used; k++) {
        if (experts[k] < edit->n_expert) {
            (*n_requested)++;
            n_missing += !edit->resident[experts[k]];
        }
    }
    return n_missing;
}

static bool is_requested(const moe_route_edit *edit, uint32_t expert)
{
    for (size_t i = 0; i < (size_t)edit->n_rows * edit->n_used; i++) {
        if (edit->experts[i] == expert) {
            return true;
        }
    }
    return false;
}

void moe_buddy_count(const moe_route_edit *edit, uint32_t *n_requested, uint32_t *n_missing)
{
    *n_requested = 0;
    *n_missing = 0;
    for (uint32_t e = 0; e < edit->n_expert; e++) {
        bool requested = is_requested(edit, e);
        *n_requested += requested;
        *n_missing += requested && !edit->resident[e];
    }
}

/* Whether the residency gate leaves the layer unchanged. Each missing expert counts once, however
 * many rows chose it, because it would be moved once. */
static bool is_bypassed(const moe_route_edit *edit, float threshold)
{
    if (threshold >= 1.0f) {
        return false;
    }
    uint32_t n_requested;
    uint32_t n_missing;
    moe_buddy_count(edit, &n_requested, &n_missing);
    return (float)n_missing >= threshold * (float)n_requested;
}

void moe_buddy_apply(const moe_buddy_list *list, const moe_buddy_options *options,
                     moe_route_edit *edit, moe_buddy_stats *stats)
{
    uint32_t n_requested;
    uint64_t n_missing = 0;
    for (uint32_t r = 0; r < edit->n_rows; r++) {
        n_missing += count_missing(edit, r, &n_requested);
        stats->n_requested += n_requested;
    }
    stats->n_missing += n_missing;
    if (n_missing == 0 || options->max_replaced == 0) {
        return;
    }
    if (is_bypassed(edit, options->residency_threshold)) {
        stats->n_bypassed++;
        return;
    }
    for (uint32_t r = 0; r < edit->n_rows; r++) {
        row_work w = {.list = list,
                      .options = options,
                      .edit = edit,
                      .stats = stats,
                      .probs = edit->probs + (size_t)r * edit->n_expert,
                      .experts = edit->experts + (size_t)r * edit->n_used,
                      .weights = edit->weights + (size_t)r * edit->n_used};
        if (count_missing(edit, r, &n_requested) == 0) {
            continue;
        }
        if (is_gated(&w, n_requested)) {
            stats->n_gated++;
        } else {
            edit_row(&w, r);
        }
    }
}
