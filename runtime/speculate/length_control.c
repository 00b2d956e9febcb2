/* SPDX-License-Identifier: MIT */
/* What all controllers have in common: the baseline (the median of the latest plain iterations,
 * which outliers do not move), acceptance by depth and confidence, the report and the trace. */
#include "runtime/speculate/length_control.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/speculate/length_internal.h"

/* Counts of a bucket beyond this fade, so that what was long ago is forgotten. */
#define ACCEPTANCE_MEMORY 64.0f
/* Weight of the prior: the drafter's own word. */
#define PRIOR_WEIGHT 2.0f
#define MOST_TRACE   (1u << 22)

static const moe_length_kind_ops *const kinds[] = {
    [MOE_LENGTH_SURVIVAL] = &moe_length_survival_ops,
    [MOE_LENGTH_CASCADE] = &moe_length_cascade,
    [MOE_LENGTH_STATIC] = &moe_length_static,
};

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

int moe_length_control_create(moe_length_control **out, const moe_length_options *options,
                              moe_error *err)
{
    *out = NULL;
    moe_length_control *c = moe_calloc(1, sizeof *c);
    if (c != NULL) {
        c->options = *options;
        c->options.trial_iterations = or_default(options->trial_iterations, 4);
        c->options.test_trials = or_default(options->test_trials, 4);
        c->options.set_iterations = or_default(options->set_iterations, 16);
        c->options.baseline_iterations = or_default(options->baseline_iterations, 4);
        c->options.refresh_iterations = or_default(options->refresh_iterations, 100);
        c->ops = kinds[options->kind];
        c->state = moe_calloc(1, c->ops->state_size);
    }
    if (c == NULL || c->state == NULL) {
        moe_length_control_free(&c);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a length controller");
    }
    c->report.utility = c->report.utility_harmonic_mean = c->report.utility_worst = 1.0;
    c->ops->init(c);
    *out = c;
    return MOE_OK;
}

void moe_length_control_free(moe_length_control **control)
{
    if (*control != NULL) {
        free((*control)->state);
        free((*control)->trace);
        free(*control);
        *control = NULL;
    }
}

static void remember_length(moe_length_control *c)
{
    if (c->n_trace == c->trace_capacity && c->trace_capacity < MOST_TRACE) {
        uint64_t capacity = c->trace_capacity > 0 ? 2 * c->trace_capacity : 1024;
        uint8_t *bigger = moe_realloc_array(c->trace, capacity, sizeof *bigger);
        if (bigger == NULL) {
            return; /* a shorter trace is no reason to fail */
        }
        c->trace = bigger;
        c->trace_capacity = capacity;
    }
    if (c->n_trace < c->trace_capacity) {
        c->trace[c->n_trace++] = (uint8_t)c->length;
    }
}

uint32_t moe_length_begin(moe_length_control *c, uint32_t n_sequences)
{
    if (n_sequences != c->n_sequences) {
        c->n_sequences = n_sequences;
        c->n_plain = 0;
        c->base = c->base_fetch = 0.0;
        c->ops->restart(c);
    }
    uint32_t length = c->ops->begin(c);
    c->length = length < c->options.max_draft ? length : c->options.max_draft;
    return c->length;
}

/* ---- Acceptance ---- */

static uint32_t bucket_of(float confidence)
{
    static const float upper[MOE_LENGTH_BUCKETS - 1] = {0.1f, 0.25f, 0.4f, 0.55f,
                                                        0.7f, 0.85f, 0.95f};
    uint32_t b = 0;
    while (b < MOE_LENGTH_BUCKETS - 1 && confidence >= upper[b]) {
        b++;
    }
    return b;
}

static uint32_t depth_index(uint32_t depth)
{
    return depth - 1 < MOE_LENGTH_DEPTHS ? depth - 1 : MOE_LENGTH_DEPTHS - 1;
}

double moe_length_survival(const moe_length_control *c, uint32_t depth, float confidence)
{
    const moe_acceptance *a = &c->acceptance[depth_index(depth)][bucket_of(confidence)];
    return (a->accepted + PRIOR_WEIGHT * confidence) / (a->seen + PRIOR_WEIGHT);
}

void moe_length_note_token(moe_length_control *c, uint32_t depth, float confidence, bool accepted)
{
    moe_acceptance *a = &c->acceptance[depth_index(depth)][bucket_of(confidence)];
    if (a->seen >= ACCEPTANCE_MEMORY) {
        a->accepted *= 0.5f;
        a->seen *= 0.5f;
    }
    a->accepted += accepted;
    a->seen += 1.0f;
}

bool moe_length_go_on(const moe_length_control *c, uint32_t depth, double path_survival)
{
    return c->ops->go_on(c, depth, path_survival);
}

uint32_t moe_length_cut(const moe_length_control *c, const double *survival,
                        const double *fetch_cost, uint32_t n)
{
    return c->ops->cut(c, survival, fetch_cost, n);
}

/* ---- Costs ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, uint32_t n)
{
    double sorted[MOE_LENGTH_RECENT];
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void note_plain(moe_length_control *c, const moe_length_iteration *i)
{
    c->plain[c->n_plain % MOE_LENGTH_RECENT] = i->verify_cost;
    c->plain_fetch[c->n_plain % MOE_LENGTH_RECENT] = i->fetch_cost;
    c->n_plain++;
    uint32_t n = c->n_plain < MOE_LENGTH_RECENT ? c->n_plain : MOE_LENGTH_RECENT;
    c->base = median(c->plain, n);
    c->base_fetch = median(c->plain_fetch, n);
}

static void note_window(moe_length_control *c, const moe_length_iteration *i)
{
    c->window_tokens += (double)i->n_emitted / i->n_sequences;
    c->window_cost += i->draft_cost + i->verify_cost;
    if (++c->window_n < MOE_LENGTH_WINDOW) {
        return;
    }
    double utility = c->base > 0.0 ? c->window_tokens * c->base / c->window_cost : 1.0;
    moe_length_report *r = &c->report;
    c->harmonic_sum += 1.0 / utility;
    c->n_windows++;
    r->utility = utility;
    r->utility_harmonic_mean = (double)c->n_windows / c->harmonic_sum;
    r->utility_worst = utility < r->utility_worst ? utility : r->utility_worst;
    c->window_tokens = c->window_cost = 0.0;
    c->window_n = 0;
}

void moe_length_end(moe_length_control *c, const moe_length_iteration *i)
{
    double utility = 1.0;
    double cost = i->draft_cost + i->verify_cost;
    if (i->n_sequences == 0) {
        return;
    }
    if (i->n_drafted == 0 && i->n_draft_passes == 0) {
        note_plain(c, i);
    } else if (c->base > 0.0 && cost > 0.0) {
        utility = (double)i->n_emitted / i->n_sequences * c->base / cost;
    }
    c->report.n_iterations++;
    c->report.n_speculating += i->n_drafted > 0;
    c->report.base_cost = c->base;
    c->report.draft_length = c->length;
    remember_length(c);
    note_window(c, i);
    c->ops->end(c, i, utility);
}

void moe_length_get_report(const moe_length_control *c, moe_length_report *report)
{
    *report = c->report;
}

const uint8_t *moe_length_trace(const moe_length_control *c, uint64_t *n)
{
    *n = c->n_trace;
    return c->trace;
}
