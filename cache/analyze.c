/* SPDX-License-Identifier: MIT */
/* Measures what a trace says about routing, independent of any cache: how many experts consecutive
 * tokens share, how many distinct experts several tokens need together, how skewed the choices are,
 * and which experts are used together.
 *
 * Tokens are neighbours within their sequence: rows are first ordered by sequence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <moe/trace.h>

#include "cache/trace_rows.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

typedef struct analyzer {
    const moe_trace *trace;
    uint64_t *rows;    /* [n_rows] ordered by sequence, then as evaluated */
    uint32_t *pairs;   /* [n_expert][n_expert] of the layer at work */
    uint64_t *seen_at; /* [n_expert] the last window in which the expert was seen */
    uint64_t mark;
    uint32_t *sorted; /* [n_expert] counts of the layer at work, largest first */
} analyzer;

/* ---- One layer ---- */

static uint32_t overlap_of(moe_trace_list a, moe_trace_list b)
{
    uint32_t n = 0;
    for (uint32_t i = 0, j = 0; i < a.n && j < b.n;) {
        n += a.ids[i] == b.ids[j];
        uint16_t left = a.ids[i];
        i += left <= b.ids[j];
        j += b.ids[j] <= left;
    }
    return n;
}

static void measure_overlap(const analyzer *an, uint32_t layer, moe_layer_analysis *out)
{
    const moe_trace *trace = an->trace;
    for (uint32_t distance = 1; distance <= MOE_ANALYSIS_DISTANCES; distance++) {
        uint64_t n_shared = 0;
        uint64_t n_choices = 0;
        for (uint64_t i = distance; i < trace->n_rows; i++) {
            uint64_t before = an->rows[i - distance];
            if (trace->sequence[before] == trace->sequence[an->rows[i]]) {
                moe_trace_list list = moe_trace_list_of(trace, an->rows[i], layer);
                n_shared += overlap_of(moe_trace_list_of(trace, before, layer), list);
                n_choices += list.n;
            }
        }
        out->overlap[distance - 1] = n_choices == 0 ? -1 : (double)n_shared / (double)n_choices;
    }
}

/* Counts the distinct experts of windows of consecutive tokens. Each window begins one token
 * after the window before it. */
static void measure_unique(analyzer *an, uint32_t layer, moe_layer_analysis *out)
{
    const moe_trace *trace = an->trace;
    uint64_t total[MOE_ANALYSIS_TOKENS] = {0};
    uint64_t n_windows[MOE_ANALYSIS_TOKENS] = {0};
    for (uint64_t first = 0; first < trace->n_rows; first++) {
        uint32_t n_unique = 0;
        an->mark++;
        for (uint64_t b = 0; b < MOE_ANALYSIS_TOKENS && first + b < trace->n_rows; b++) {
            uint64_t row = an->rows[first + b];
            if (trace->sequence[row] != trace->sequence[an->rows[first]]) {
                break;
            }
            moe_trace_list list = moe_trace_list_of(trace, row, layer);
            for (uint32_t i = 0; i < list.n; i++) {
                n_unique += an->seen_at[list.ids[i]] != an->mark;
                an->seen_at[list.ids[i]] = an->mark;
            }
            total[b] += n_unique;
            n_windows[b]++;
        }
    }
    for (uint32_t b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
        out->unique[b] = n_windows[b] == 0 ? -1 : (double)total[b] / (double)n_windows[b];
    }
}

/* Computes how many experts two tokens would share if routing did not depend on earlier tokens:
 * once with each expert's own frequency, once with equal frequencies. */
static void compute_expectations(const moe_trace *trace, const uint32_t *counts, double mean_used,
                                 moe_layer_analysis *out)
{
    double n_rows = (double)trace->n_rows;
    double n_expert = trace->n_expert;
    double sum_of_squares = 0;
    for (uint32_t e = 0; e < trace->n_expert; e++) {
        double p = counts[e] / n_rows;
        sum_of_squares += p * p;
        for (uint32_t b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
            out->unique_independent[b] += 1.0 - pow(1.0 - p, b + 1.0);
        }
    }
    out->overlap_uniform = mean_used / n_expert;
    out->overlap_independent = sum_of_squares / mean_used;
    for (uint32_t b = 0; b < MOE_ANALYSIS_TOKENS; b++) {
        out->unique_uniform[b] = n_expert * (1.0 - pow(1.0 - mean_used / n_expert, b + 1.0));
    }
}

static int compare_descending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left;
    uint32_t b = *(const uint32_t *)right;
    return (a < b) - (a > b);
}

/* Measures how unevenly a layer's experts are used. Adds the layer's coverage curve to
 * *coverage. */
static void measure_skew(analyzer *an, const uint32_t *counts, uint64_t n_choices, double *coverage,
                         moe_layer_analysis *out)
{
    uint32_t n_expert = an->trace->n_expert;
    uint32_t quarter = n_expert / 4 > 0 ? n_expert / 4 : 1;
    uint64_t total = 0;
    memcpy(an->sorted, counts, n_expert * sizeof *counts);
    qsort(an->sorted, n_expert, sizeof *an->sorted, compare_descending);
    for (uint32_t n = 0; n < n_expert; n++) {
        total += an->sorted[n];
        double share = (double)total / (double)n_choices;
        coverage[n] += share;
        if (n + 1 == quarter) {
            out->skewness = share;
        }
    }
}

static void count_pairs(analyzer *an, uint32_t layer)
{
    const moe_trace *trace = an->trace;
    size_t n_expert = trace->n_expert;
    memset(an->pairs, 0, n_expert * n_expert * sizeof *an->pairs);
    for (uint64_t row = 0; row < trace->n_rows; row++) {
        moe_trace_list list = moe_trace_list_of(trace, row, layer);
        for (uint32_t i = 0; i < list.n; i++) {
            for (uint32_t j = 0; j < list.n; j++) {
                an->pairs[list.ids[i] * n_expert + list.ids[j]]++;
            }
        }
    }
}

static double concentration(const analyzer *an, double mean_used)
{
    size_t n_expert = an->trace->n_expert;
    uint32_t most = 0;
    for (size_t i = 0; i < n_expert; i++) {
        for (size_t j = 0; j < i; j++) {
            uint32_t n = an->pairs[i * n_expert + j];
            most = n > most ? n : most;
        }
    }
    double expected = (double)an->trace->n_rows * mean_used * (mean_used - 1) /
                      ((double)n_expert * ((double)n_expert - 1));
    return expected > 0 ? most / expected : 0;
}

/* Analyzes one layer. Returns false for a layer without experts. */
static bool analyze_layer(analyzer *an, uint32_t layer, moe_analysis *analysis)
{
    const moe_trace *trace = an->trace;
    moe_layer_analysis *out = &analysis->layers[layer];
    uint32_t *counts = analysis->counts + (size_t)layer * trace->n_expert;
    uint64_t n_choices = 0;
    for (uint64_t row = 0; row < trace->n_rows; row++) {
        moe_trace_list list = moe_trace_list_of(trace, row, layer);
        for (uint32_t i = 0; i < list.n; i++) {
            counts[list.ids[i]]++;
        }
        n_choices += list.n;
    }
    if (n_choices == 0) {
        return false;
    }
    double mean_used = (double)n_choices / (double)trace->n_rows;
    measure_overlap(an, layer, out);
    measure_unique(an, layer, out);
    compute_expectations(trace, counts, mean_used, out);
    measure_skew(an, counts, n_choices, analysis->coverage, out);
    count_pairs(an, layer);
    out->concentration = concentration(an, mean_used);
    if (layer == analysis->pair_layer) {
        memcpy(analysis->pairs, an->pairs,
               (size_t)trace->n_expert * trace->n_expert * sizeof *an->pairs);
    }
    return true;
}

/* ---- All layers ---- */

/* Adds the layer's results to the sum, times the weight. Both are structures that consist of
 * doubles only. */
static void add_layer(moe_layer_analysis *sum, const moe_layer_analysis *layer, double weight)
{
    double *to = (double *)sum;
    const double *from = (const double *)layer;
    for (size_t i = 0; i < sizeof *sum / sizeof(double); i++) {
        to[i] += weight * from[i];
    }
}

static void average(moe_analysis *analysis, const bool *has_experts)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < analysis->info.n_layer; layer++) {
        n += has_experts[layer];
    }
    for (uint32_t layer = 0; layer < analysis->info.n_layer; layer++) {
        if (has_experts[layer]) {
            add_layer(&analysis->mean, &analysis->layers[layer], 1.0 / n);
        }
    }
    for (uint32_t e = 0; e < analysis->info.n_expert; e++) {
        analysis->coverage[e] /= n;
    }
}

typedef struct sequence_row {
    uint32_t sequence;
    uint64_t row;
} sequence_row;

static int compare_sequence_rows(const void *left, const void *right)
{
    const sequence_row *a = left;
    const sequence_row *b = right;
    if (a->sequence != b->sequence) {
        return a->sequence < b->sequence ? -1 : 1;
    }
    return (a->row > b->row) - (a->row < b->row);
}

static bool order_rows(analyzer *an)
{
    uint64_t n = an->trace->n_rows;
    sequence_row *order = moe_calloc(n, sizeof *order);
    if (order == NULL) {
        return false;
    }
    for (uint64_t row = 0; row < n; row++) {
        order[row] = (sequence_row){an->trace->sequence[row], row};
    }
    qsort(order, n, sizeof *order, compare_sequence_rows);
    for (uint64_t i = 0; i < n; i++) {
        an->rows[i] = order[i].row;
    }
    free(order);
    return true;
}

static int analyze(analyzer *an, moe_analysis *analysis)
{
    const moe_trace *trace = an->trace;
    size_t n_expert = trace->n_expert;
    an->rows = moe_calloc(trace->n_rows, sizeof *an->rows);
    an->pairs = moe_calloc(n_expert * n_expert, sizeof *an->pairs);
    an->seen_at = moe_calloc(n_expert, sizeof *an->seen_at);
    an->sorted = moe_calloc(n_expert, sizeof *an->sorted);
    bool *has_experts = moe_calloc(trace->n_layer, sizeof *has_experts);
    int status = MOE_ERR_MEMORY;
    if (an->rows != NULL && an->pairs != NULL && an->seen_at != NULL && an->sorted != NULL &&
        has_experts != NULL && order_rows(an)) {
        for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
            has_experts[layer] = analyze_layer(an, layer, analysis);
        }
        average(analysis, has_experts);
        status = MOE_OK;
    }
    free(an->rows);
    free(an->pairs);
    free(an->seen_at);
    free(an->sorted);
    free(has_experts);
    return status;
}

int moe_analyze(moe_analysis **out, const moe_trace *trace, uint32_t pair_layer, moe_error *err)
{
    if (out == NULL) {
        return moe_fail_null(err, "moe_analyze", "out");
    }
    *out = NULL;
    if (trace == NULL) {
        return moe_fail_null(err, "moe_analyze", "trace");
    }
    size_t n_expert = trace->n_expert;
    if (pair_layer >= trace->n_layer) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "analysis: layer %u of a trace of %u layers",
                        pair_layer, trace->n_layer);
    }
    moe_analysis *analysis = moe_calloc(1, sizeof *analysis);
    if (analysis == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the analysis of a trace");
    }
    analysis->struct_size = sizeof *analysis;
    analysis->info.struct_size = sizeof analysis->info;
    (void)moe_trace_get_info(trace, &analysis->info);
    analysis->pair_layer = pair_layer;
    analysis->layers = moe_calloc(trace->n_layer, sizeof *analysis->layers);
    analysis->coverage = moe_calloc(n_expert, sizeof *analysis->coverage);
    analysis->counts = moe_calloc(trace->n_layer * n_expert, sizeof *analysis->counts);
    analysis->pairs = moe_calloc(n_expert * n_expert, sizeof *analysis->pairs);
    analyzer an = {.trace = trace};
    if (analysis->layers == NULL || analysis->coverage == NULL || analysis->counts == NULL ||
        analysis->pairs == NULL || analyze(&an, analysis) != MOE_OK) {
        moe_analysis_free(&analysis);
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the analysis of a trace");
    }
    *out = analysis;
    return MOE_OK;
}

void moe_analysis_free(moe_analysis **analysis_ptr)
{
    moe_analysis *analysis = analysis_ptr != NULL ? *analysis_ptr : NULL;
    if (analysis == NULL) {
        return;
    }
    free(analysis->layers);
    free(analysis->coverage);
    free(analysis->counts);
    free(analysis->pairs);
    free(analysis);
    *analysis_ptr = NULL;
}

double moe_analysis_amdahl(const moe_analysis *analysis, double f, uint32_t n_tokens)
{
    if (analysis == NULL || n_tokens == 0 || n_tokens > MOE_ANALYSIS_TOKENS) {
        return -1;
    }
    double unique = analysis->mean.unique[n_tokens - 1];
    return unique < 0 ? -1 : f * unique / analysis->mean.unique[0] + 1.0 - f;
}
