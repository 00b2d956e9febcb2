/* SPDX-License-Identifier: MIT */
#include "runtime/engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

void moe_sampling_init(moe_sampling *sampling)
{
    *sampling = (moe_sampling){.struct_size = sizeof *sampling,
                               .temperature = 0.8f,
                               .top_k = 40,
                               .top_p = 0.95f,
                               .min_p = 0.05f,
                               .repeat_penalty = 1.0f,
                               .repeat_last = 64};
}

int moe_sampling_check(const moe_sampling *s, moe_error *err)
{
    if (s->struct_size != sizeof *s) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "sampling: struct_size is %zu, not %zu; use moe_sampling_init()",
                        s->struct_size, sizeof *s);
    }
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
    return MOE_OK;
}

void moe_sampler_seed(moe_sampler *sampler, uint64_t seed)
{
    moe_random_seed(&sampler->random, seed);
}

int moe_sampler_init(moe_sampler *sampler, const moe_sampling *settings, uint32_t n_vocab,
                     moe_error *err)
{
    *sampler = (moe_sampler){.settings = *settings, .n_vocab = n_vocab};
    sampler->candidates = moe_calloc(n_vocab, sizeof *sampler->candidates);
    sampler->choices = moe_calloc(n_vocab, sizeof *sampler->choices);
    sampler->seen = moe_calloc(n_vocab, sizeof *sampler->seen);
    if (sampler->candidates == NULL || sampler->choices == NULL || sampler->seen == NULL) {
        moe_sampler_free(sampler);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a sampler of %u tokens", n_vocab);
    }
    moe_sampler_seed(sampler, settings->seed);
    return MOE_OK;
}

void moe_sampler_free(moe_sampler *sampler)
{
    free(sampler->candidates);
    free(sampler->choices);
    free(sampler->seen);
    sampler->candidates = NULL;
    sampler->choices = NULL;
    sampler->seen = NULL;
}

/* Logits become candidates; those of recent tokens are pushed away from being chosen, once each. */
static void collect(moe_sampler *sampler, const float *logits, const int32_t *recent,
                    size_t n_recent)
{
    for (uint32_t t = 0; t < sampler->n_vocab; t++) {
        float logit = isnan(logits[t]) ? -INFINITY : logits[t];
        sampler->candidates[t] = (moe_candidate){.logit = logit, .token = (int32_t)t};
    }
    float penalty = sampler->settings.repeat_penalty;
    if (penalty == 1.0f) {
        return;
    }
    size_t last = sampler->settings.repeat_last;
    size_t first = n_recent > last ? n_recent - last : 0;
    for (size_t i = first; i < n_recent; i++) {
        moe_candidate *c = &sampler->candidates[recent[i]];
        if (sampler->seen[c->token]) {
            continue;
        }
        sampler->seen[c->token] = 1;
        c->logit = c->logit > 0.0f ? c->logit / penalty : c->logit * penalty;
    }
    for (size_t i = first; i < n_recent; i++) {
        sampler->seen[recent[i]] = 0;
    }
}

bool moe_sampler_takes_greatest(const moe_sampler *sampler)
{
    return sampler->settings.temperature == 0.0f && sampler->settings.repeat_penalty == 1.0f;
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

static int32_t greedy(const moe_sampler *sampler)
{
    const moe_candidate *best = &sampler->candidates[0];
    for (uint32_t t = 1; t < sampler->n_vocab; t++) {
        if (sampler->candidates[t].logit > best->logit) {
            best = &sampler->candidates[t];
        }
    }
    return best->token;
}

static bool goes_before(const moe_candidate *a, const moe_candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->token < b->token);
}

static int compare(const void *a, const void *b)
{
    return goes_before(a, b) ? -1 : 1;
}

static void sift_down(moe_candidate *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t worst = i;
        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++) {
            if (goes_before(&heap[worst], &heap[child])) {
                worst = child;
            }
        }
        if (worst == i) {
            return;
        }
        moe_candidate swap = heap[i];
        heap[i] = heap[worst];
        heap[worst] = swap;
        i = worst;
    }
}

/* The n best candidates to the front, in order; a heap of n whose root is the worst of them. */
static void select_best(moe_candidate *c, uint32_t n_all, uint32_t n)
{
    if (n < n_all) {
        for (uint32_t i = n / 2; i-- > 0;) {
            sift_down(c, n, i);
        }
        for (uint32_t i = n; i < n_all; i++) {
            if (goes_before(&c[i], &c[0])) {
                c[0] = c[i];
                sift_down(c, n, 0);
            }
        }
    }
    qsort(c, n, sizeof *c, compare);
}

static double to_probabilities(moe_candidate *c, uint32_t n, double temperature)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        c[i].p = exp(((double)c[i].logit - c[0].logit) / temperature);
        sum += c[i].p;
    }
    return sum;
}

/* How many of the sorted candidates top-p and min-p keep; at least one. */
static uint32_t cut_tail(const moe_sampling *s, moe_candidate *c, uint32_t n)
{
    double sum = to_probabilities(c, n, 1.0);
    if (s->top_p < 1.0f) {
        double held = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            held += c[i].p;
            if (held >= (double)s->top_p * sum) {
                n = i + 1;
            }
        }
    }
    while (n > 1 && c[n - 1].p < (double)s->min_p * c[0].p) {
        n--;
    }
    return n;
}

void moe_sampler_distribution(moe_sampler *sampler, const float *logits, const int32_t *recent,
                              size_t n_recent, moe_distribution *out)
{
    const moe_sampling *s = &sampler->settings;
    moe_candidate *c = sampler->candidates;
    *out = (moe_distribution){.n = 1, .choices = sampler->choices};
    if (moe_sampler_takes_greatest(sampler)) {
        out->choices[0] = (moe_choice){greatest(logits, sampler->n_vocab), 1.0};
        return;
    }
    collect(sampler, logits, recent, n_recent);
    if (s->temperature == 0.0f) {
        out->choices[0] = (moe_choice){greedy(sampler), 1.0};
        return;
    }
    uint32_t n = s->top_k == 0 || s->top_k > sampler->n_vocab ? sampler->n_vocab : s->top_k;
    select_best(c, sampler->n_vocab, n);
    if (!isfinite(c[0].logit)) {
        out->choices[0] = (moe_choice){c[0].token, 1.0};
        return;
    }
    out->n = cut_tail(s, c, n);
    (void)to_probabilities(c, out->n, s->temperature);
    for (uint32_t i = 0; i < out->n; i++) {
        out->choices[i] = (moe_choice){c[i].token, c[i].p};
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
    return moe_sampler_draw(sampler, &distribution);
}
