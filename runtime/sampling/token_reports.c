/* SPDX-License-Identifier: MIT */
#include "runtime/sampling/token_reports.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

int moe_token_reports_set(moe_token_reports *r, int n_top, moe_error *err)
{
    if (n_top < -1 || n_top > MOE_MOST_TOP_TOKENS) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "reports have 0 to %d of the likeliest tokens (-1: no reports), not %d",
                        MOE_MOST_TOP_TOKENS, n_top);
    }
    if (n_top >= 0 && r->values == NULL) {
        r->values = moe_calloc(MOE_REPORTS_KEPT, sizeof *r->values);
        r->positions = moe_calloc(MOE_REPORTS_KEPT, sizeof *r->positions);
        if (r->values == NULL || r->positions == NULL) {
            moe_token_reports_free(r);
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for reports on tokens");
        }
    }
    r->n_top = n_top;
    r->n = 0;
    return MOE_OK;
}

void moe_token_reports_free(moe_token_reports *r)
{
    free(r->values);
    free(r->positions);
    *r = (moe_token_reports){.n_top = -1};
}

static void drop_first(moe_token_reports *r, uint32_t n)
{
    r->n -= n;
    memmove(r->values, r->values + n, r->n * sizeof *r->values);
    memmove(r->positions, r->positions + n, r->n * sizeof *r->positions);
}

/* Inserts the token at its place among the likeliest; tokens come by ascending ids. */
static void rank(moe_token_report *report, uint32_t most, int32_t token, float logit)
{
    if (report->n_top == most && !(logit > report->top[most - 1].logprob)) {
        return;
    }
    uint32_t at = report->n_top < most ? report->n_top++ : most - 1;
    while (at > 0 && logit > report->top[at - 1].logprob) {
        report->top[at] = report->top[at - 1];
        at--;
    }
    report->top[at] = (moe_token_chance){token, logit};
}

static void fill(moe_token_report *report, uint32_t most, const float *logits, uint32_t n_vocab,
                 int32_t token)
{
    float greatest = -INFINITY;
    double sum = 0.0;
    *report = (moe_token_report){.n_top = 0};
    for (uint32_t t = 0; t < n_vocab; t++) {
        greatest = logits[t] > greatest ? logits[t] : greatest;
    }
    for (uint32_t t = 0; t < n_vocab; t++) {
        sum += isnan(logits[t]) ? 0.0 : exp((double)logits[t] - (double)greatest);
        if (most > 0 && !isnan(logits[t])) {
            rank(report, most, (int32_t)t, logits[t]);
        }
    }
    double log_sum = (double)greatest + (sum > 0.0 ? log(sum) : 0.0);
    for (uint32_t i = 0; i < report->n_top; i++) {
        report->top[i].logprob = (float)((double)report->top[i].logprob - log_sum);
    }
    report->chosen = (moe_token_chance){token, (float)((double)logits[token] - log_sum)};
}

int moe_token_report_make(moe_token_report *report, const float *logits, uint32_t n_vocab,
                          int32_t token, int n_top, moe_error *err)
{
    if (report == NULL || logits == NULL) {
        return moe_fail_null(err, "moe_token_report_make", "report or logits");
    }
    if (n_top < 0 || n_top > MOE_MOST_TOP_TOKENS) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "reports have 0 to %d of the likeliest tokens, not %d", MOE_MOST_TOP_TOKENS,
                        n_top);
    }
    if (token < 0 || (uint32_t)token >= n_vocab) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "the token must be in 0 .. %u, not %d",
                        n_vocab > 0 ? n_vocab - 1 : 0, (int)token);
    }
    fill(report, (uint32_t)n_top, logits, n_vocab, token);
    return MOE_OK;
}

void moe_token_reports_add(moe_token_reports *r, const float *logits, uint32_t n_vocab,
                           size_t position, int32_t token)
{
    if (r->n_top < 0) {
        return;
    }
    while (r->n > 0 && r->positions[r->n - 1] >= position) {
        r->n--;
    }
    if (r->n == MOE_REPORTS_KEPT) {
        drop_first(r, 1);
    }
    r->positions[r->n] = (uint32_t)position;
    fill(&r->values[r->n++], (uint32_t)r->n_top, logits, n_vocab, token);
}

size_t moe_token_reports_take(moe_token_reports *r, size_t n_tokens, moe_token_report *out,
                              size_t capacity)
{
    while (r->n > 0 && r->positions[r->n - 1] >= n_tokens) {
        r->n--;
    }
    uint32_t n = r->n < capacity ? r->n : (uint32_t)capacity;
    if (n > 0) {
        memcpy(out, r->values, n * sizeof *out);
        drop_first(r, n);
    }
    return n;
}
