/* SPDX-License-Identifier: MIT */
/* Filters cut the vocabulary in its order of logits, but ordering all of it takes longer than some
 * models' whole pass. So a pass without ordering first finds how far below the best logit a filter
 * may keep any candidate. Only candidates within that range are ordered and cut exactly. The result
 * is, to the bit, that of ordering everything; a test checks this. */
#include "runtime/sampling/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"

void moe_sampling_init_sized(moe_sampling *sampling, size_t struct_size)
{
    const moe_sampling defaults = {.struct_size = sizeof defaults,
                                   .temperature = 0.8f,
                                   .top_k = 40,
                                   .top_p = 0.95f,
                                   .min_p = 0.05f,
                                   .repeat_penalty = 1.0f,
                                   .repeat_last = 64};
    moe_struct_init(&moe_kind_sampling, sampling, struct_size, &defaults);
}

int moe_sampling_take(moe_sampling *s, const moe_sampling *given, moe_error *err)
{
    /* The struct's size is fixed, because it is part of the session's options. */
    if (given != NULL && given->struct_size > sizeof *s) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "moe_sampling: struct_size is %zu; use moe_sampling_init()",
                        given->struct_size);
    }
    MOE_TRY(moe_struct_take(&moe_kind_sampling, s, given, err));
    if (!(s->temperature >= 0.0f) || !isfinite(s->temperature)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "temperature must be 0 or more, not %g",
                        (double)s->temperature);
    }
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "top-p must be in (0, 1], not %g", (double)s->top_p);
    }
    if (!(s->min_p >= 0.0f && s->min_p < 1.0f)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "min-p must be in [0, 1), not %g", (double)s->min_p);
    }
    if (!(s->repeat_penalty > 0.0f) || !isfinite(s->repeat_penalty)) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "the repetition penalty must be above 0, not %g",
                        (double)s->repeat_penalty);
    }
    const float penalties[] = {s->presence_penalty, s->frequency_penalty};
    for (int i = 0; i < 2; i++) {
        if (!(fabsf(penalties[i]) <= 1000.0f)) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "the %s penalty must be in [-1000, 1000], not %g",
                            i == 0 ? "presence" : "frequency", (double)penalties[i]);
        }
    }
    return MOE_OK;
}

void moe_sampler_seed(moe_sampler *sampler, uint64_t seed)
{
    moe_random_seed(&sampler->random, seed);
}

uint64_t moe_sampler_bytes(uint32_t n_vocab)
{
    return (uint64_t)n_vocab * (sizeof(moe_choice) + 2 * sizeof(moe_candidate) + 1);
}

int moe_sampler_init(moe_sampler *sampler, const moe_sampling *settings, uint32_t n_vocab,
                     moe_error *err)
{
    *sampler = (moe_sampler){.settings = *settings, .n_vocab = n_vocab, .reports = {.n_top = -1}};
    sampler->memory = moe_map_pages(moe_sampler_bytes(n_vocab));
    if (sampler->memory == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a sampler of %u tokens", n_vocab);
    }
    sampler->choices = sampler->memory; /* the widest elements first */
    sampler->candidates = (moe_candidate *)(sampler->choices + n_vocab);
    sampler->spare = sampler->candidates + n_vocab;
    sampler->seen = (uint8_t *)(sampler->spare + n_vocab);
    moe_sampler_seed(sampler, settings->seed);
    return MOE_OK;
}

void moe_sampler_free(moe_sampler *sampler)
{
    moe_unmap_pages(sampler->memory, moe_sampler_bytes(sampler->n_vocab));
    sampler->memory = NULL;
    sampler->candidates = NULL;
    sampler->spare = NULL;
    sampler->choices = NULL;
    sampler->seen = NULL;
    free(sampler->biases);
    sampler->biases = NULL;
    sampler->n_biases = 0;
    moe_token_reports_free(&sampler->reports);
    moe_token_constraint_free(&sampler->constraint);
}

int moe_sampler_set_grammar(moe_sampler *sampler, moe_grammar *grammar, const moe_token_keys *keys,
                            size_t start, moe_error *err)
{
    moe_token_constraint *constraint = NULL;
    if (grammar != NULL) {
        MOE_TRY(moe_token_constraint_create(&constraint, grammar, keys, start, err));
    }
    moe_token_constraint_free(&sampler->constraint);
    sampler->constraint = constraint;
    return MOE_OK;
}

int moe_sampler_set_biases(moe_sampler *sampler, const moe_token_bias *biases, size_t n,
                           moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (biases[i].token < 0 || (uint32_t)biases[i].token >= sampler->n_vocab) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "a bias names token %d, which is outside the vocabulary of %u",
                            biases[i].token, sampler->n_vocab);
        }
        if (isnan(biases[i].bias) || biases[i].bias == INFINITY) {
            return moe_fail(err, MOE_ERR_ARGUMENT,
                            "the bias of token %d must be a number, or minus infinity",
                            biases[i].token);
        }
    }
    moe_token_bias *copy = n > 0 ? moe_calloc(n, sizeof *copy) : NULL;
    if (n > 0 && copy == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %zu biases", n);
    }
    if (n > 0) {
        memcpy(copy, biases, n * sizeof *copy);
    }
    free(sampler->biases);
    sampler->biases = copy;
    sampler->n_biases = n;
    return MOE_OK;
}

int moe_sampler_inherit(moe_sampler *sampler, const moe_sampler *from, moe_error *err)
{
    int status = moe_sampler_set_biases(sampler, from->biases, from->n_biases, err);
    status = status == MOE_OK ? moe_token_reports_set(&sampler->reports, from->reports.n_top, err)
                              : status;
    const moe_token_constraint *c = from->constraint;
    if (status == MOE_OK && c != NULL) {
        status = moe_sampler_set_grammar(sampler, c->grammar, c->keys, c->start, err);
    }
    sampler->random = from->random;
    return status;
}

/* The penalties of recent tokens: repetition and presence once each, frequency each time. */
static void penalise(moe_sampler *sampler, const int32_t *recent, size_t n_recent)
{
    const moe_sampling *s = &sampler->settings;
    size_t first = n_recent > s->repeat_last ? n_recent - s->repeat_last : 0;
    for (size_t i = first; i < n_recent; i++) {
        moe_candidate *c = &sampler->candidates[recent[i]];
        if (!sampler->seen[c->token]) {
            sampler->seen[c->token] = 1;
            c->logit =
                c->logit > 0.0f ? c->logit / s->repeat_penalty : c->logit * s->repeat_penalty;
            c->logit -= s->presence_penalty;
        }
        c->logit -= s->frequency_penalty;
    }
    for (size_t i = first; i < n_recent; i++) {
        sampler->seen[recent[i]] = 0;
    }
}

static bool has_penalties(const moe_sampling *s)
{
    return s->repeat_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

static void hold_to_grammar(moe_sampler *sampler, const int32_t *recent, size_t n_recent)
{
    const uint64_t *mask = moe_token_constraint_mask(sampler->constraint, recent, n_recent);
    for (uint32_t t = 0; t < sampler->n_vocab; t++) {
        if ((mask[t / 64] >> (t % 64) & 1) == 0) {
            sampler->candidates[t].logit = -INFINITY;
        }
    }
}

/* The lowest token that the grammar allows, for logits of which none is a number. */
static int32_t allowed_token(moe_sampler *sampler, int32_t otherwise, const int32_t *recent,
                             size_t n_recent)
{
    const uint64_t *mask = sampler->constraint == NULL
                               ? NULL
                               : moe_token_constraint_mask(sampler->constraint, recent, n_recent);
    for (uint32_t t = 0; t < sampler->n_vocab && mask != NULL; t++) {
        if ((mask[t / 64] >> (t % 64) & 1) != 0) {
            return (int32_t)t;
        }
    }
    return otherwise;
}

/* Turns logits into candidates: with biases, and the penalties of recent tokens. */
static void collect(moe_sampler *sampler, const float *logits, const int32_t *recent,
                    size_t n_recent)
{
    for (uint32_t t = 0; t < sampler->n_vocab; t++) {
        float logit = isnan(logits[t]) ? -INFINITY : logits[t];
        sampler->candidates[t] = (moe_candidate){.logit = logit, .token = (int32_t)t};
    }
    for (size_t i = 0; i < sampler->n_biases; i++) {
        const moe_token_bias *b = &sampler->biases[i];
        float logit = sampler->candidates[b->token].logit + b->bias;
        sampler->candidates[b->token].logit = isnan(logit) ? -INFINITY : logit;
    }
    if (has_penalties(&sampler->settings)) {
        penalise(sampler, recent, n_recent);
    }
    if (sampler->constraint != NULL) {
        hold_to_grammar(sampler, recent, n_recent);
    }
}

bool moe_sampler_takes_greatest(const moe_sampler *sampler)
{
    return sampler->settings.temperature == 0.0f && !has_penalties(&sampler->settings) &&
           sampler->n_biases == 0 && sampler->constraint == NULL;
}

static int32_t greatest(const float *logits, uint32_t n)
{
    int32_t best = 0;
    float max = -INFINITY;
    for (uint32_t t = 0; t < n; t++) {
        if (logits[t] > max) {
            max = logits[t];
            best = (int32_t)t;
        }
    }
    return best;
}

/* The best candidate; of equal ones the lowest token. */
static moe_candidate best_of(const moe_candidate *c, uint32_t n)
{
    moe_candidate best = c[0];
    for (uint32_t i = 1; i < n; i++) {
        if (c[i].logit > best.logit) {
            best = c[i];
        }
    }
    return best;
}

static double weight(float logit, float best, double temperature)
{
    return exp(((double)logit - (double)best) / temperature);
}

/* Turns the first n candidates, which are in order, into choices. Returns their sum. */
static double to_choices(const moe_candidate *c, uint32_t n, double temperature, moe_choice *out)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (moe_choice){c[i].token, weight(c[i].logit, c[0].logit, temperature)};
        sum += out[i].p;
    }
    return sum;
}

/* Bounds of the sum that adding all weights up in order would give. They are computed without
 * ordering the weights. */
typedef struct sum_bounds {
    double low, high;
} sum_bounds;

/* How far below the best logit top-p may keep any candidate. Adds up weights in buckets of logits,
 * from the greatest on, until they certainly hold the share. Adding n terms of one sign in another
 * order changes a sum by at most n DBL_EPSILON of it; the walk allows for twice that. *sum: of all.
 */
static double top_p_depth(const moe_sampler *sampler, float best, sum_bounds *sum)
{
    enum {
        N_BUCKETS = 512,
        BUCKETS_A_UNIT = 16 /* the last bucket holds all that are N_BUCKETS / 16 or more below the
                             * best */
    };
    double weights[N_BUCKETS] = {0.0};
    double total = 0.0;
    for (uint32_t i = 0; i < sampler->n_vocab; i++) {
        float logit = sampler->candidates[i].logit;
        double depth = ((double)best - (double)logit) * BUCKETS_A_UNIT;
        weights[depth < N_BUCKETS - 1 ? (uint32_t)depth : N_BUCKETS - 1] +=
            weight(logit, best, 1.0);
    }
    for (uint32_t b = 0; b < N_BUCKETS; b++) {
        total += weights[b];
    }
    double error = 2.0 * DBL_EPSILON * sampler->n_vocab;
    *sum = (sum_bounds){total * (1.0 - error), total * (1.0 + error)};
    double held = 0.0;
    for (uint32_t b = 0; b < N_BUCKETS - 1; b++) {
        held += weights[b];
        if (held >= (double)sampler->settings.top_p * total * (1.0 + 4.0 * error)) {
            return (double)(b + 1) / BUCKETS_A_UNIT;
        }
    }
    return INFINITY;
}

/* How many of the ordered choices hold top-p of the sum; n when even all n do not. Returns 0 if
 * that depends on where the sum lies between its bounds. */
static uint32_t cut_top_p(const moe_choice *choices, uint32_t n, double top_p, sum_bounds sum)
{
    double held = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        held += choices[i].p;
        if (held >= top_p * sum.high) {
            return i + 1;
        }
        if (held >= top_p * sum.low) {
            return 0;
        }
    }
    return n;
}

/* Moves candidates that are at most `depth` below the best to the front, still by ascending tokens.
 */
static uint32_t keep_near(moe_candidate *c, uint32_t n, float best, double depth)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        c[kept] = c[i];
        kept += (double)best - (double)c[i].logit <= depth;
    }
    return kept;
}

/* Cuts the whole vocabulary by top-p and min-p. The kept tokens are in out->choices, with their
 * weights at temperature 1, and in order in the candidates. Orders only candidates that may be
 * kept. False if the result depends on rounding (many equal logits can cause this), so that only
 * the full order gives it; some candidates are lost then. */
static bool cut_vocabulary(moe_sampler *sampler, moe_candidate best, moe_distribution *out)
{
    const moe_sampling *s = &sampler->settings;
    moe_candidate *c = sampler->candidates;
    sum_bounds sum = {0.0, 0.0};
    double depth = INFINITY;
    if (s->min_p > 0.0f) {
        /* exp() errs by far less than this margin, a part in a billion. */
        depth = 1e-9 - log((double)s->min_p);
    }
    if (s->top_p < 1.0f) {
        depth = fmin(depth, top_p_depth(sampler, best.logit, &sum));
    }
    uint32_t n = keep_near(c, sampler->n_vocab, best.logit, depth);
    moe_candidates_order(c, sampler->spare, n, n);
    (void)to_choices(c, n, 1.0, out->choices);
    out->n = s->top_p < 1.0f ? cut_top_p(out->choices, n, (double)s->top_p, sum) : n;
    return out->n > 0;
}

/* Cuts the first n candidates, which are in order, by top-p. */
static void cut_ordered(const moe_sampler *sampler, uint32_t n, moe_distribution *out)
{
    double top_p = (double)sampler->settings.top_p;
    double sum = to_choices(sampler->candidates, n, 1.0, out->choices);
    out->n = top_p < 1.0 ? cut_top_p(out->choices, n, top_p, (sum_bounds){sum, sum}) : n;
}

void moe_sampler_distribution(moe_sampler *sampler, const float *logits, const int32_t *recent,
                              size_t n_recent, moe_distribution *out)
{
    const moe_sampling *s = &sampler->settings;
    moe_candidate *c = sampler->candidates;
    uint32_t n_vocab = sampler->n_vocab;
    *out = (moe_distribution){.n = 1, .choices = sampler->choices};
    if (moe_sampler_takes_greatest(sampler)) {
        out->choices[0] = (moe_choice){greatest(logits, n_vocab), 1.0};
        return;
    }
    collect(sampler, logits, recent, n_recent);
    bool has_top_k = s->top_k > 0 && s->top_k < n_vocab;
    if (has_top_k) {
        moe_candidates_order(c, sampler->spare, n_vocab, s->top_k);
    }
    moe_candidate best = has_top_k ? c[0] : best_of(c, n_vocab);
    if (s->temperature == 0.0f || !isfinite(best.logit)) {
        int32_t token = isfinite(best.logit) ? best.token
                                             : allowed_token(sampler, best.token, recent, n_recent);
        out->choices[0] = (moe_choice){token, 1.0};
        return;
    }
    if (has_top_k) {
        cut_ordered(sampler, s->top_k, out);
    } else if (!cut_vocabulary(sampler, best, out)) {
        collect(sampler, logits, recent, n_recent);
        moe_candidates_order(c, sampler->spare, n_vocab, n_vocab);
        cut_ordered(sampler, n_vocab, out);
    }
    while (out->n > 1 && out->choices[out->n - 1].p < (double)s->min_p * out->choices[0].p) {
        out->n--;
    }
    if (s->temperature != 1.0f) {
        (void)to_choices(c, out->n, (double)s->temperature, out->choices);
    }
}

int32_t moe_sampler_draw(moe_sampler *sampler, const moe_distribution *distribution)
{
    return sampler->settings.temperature == 0.0f
               ? distribution->choices[0].token
               : moe_distribution_race(distribution, moe_random_next(&sampler->random));
}

void moe_sampler_skip(moe_sampler *sampler)
{
    if (sampler->settings.temperature > 0.0f) {
        (void)moe_random_next(&sampler->random);
    }
}

int32_t moe_sampler_next(moe_sampler *sampler, const float *logits, const int32_t *recent,
                         size_t n_recent)
{
    moe_distribution distribution;
    moe_sampler_distribution(sampler, logits, recent, n_recent, &distribution);
    int32_t token = moe_sampler_draw(sampler, &distribution);
    moe_token_reports_add(&sampler->reports, logits, sampler->n_vocab, n_recent, token);
    return token;
}
