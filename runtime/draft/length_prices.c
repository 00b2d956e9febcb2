/* SPDX-License-Identifier: MIT */
#include "runtime/draft/length_prices.h"

#include <math.h>

#define CALIBRATION_DECAY 0.98 /* of a count, at each new one: remembers about 50 */
#define PRIOR_STRENGTH    4.0
#define COST_MEMORY       64u
#define FETCH_MEMORY      64.0 /* tokens */
#define LEAST_SAMPLES     2u
#define MANY_SAMPLES      16u  /* sequences from which on one is enough */
#define COLD_SAMPLES      8u   /* the first samples of all: caches are cold, so they are not used */
#define FASTER            0.75 /* two plain samples in a row this far below t_base replace it */
#define OUTLIER           2.5
#define COST_CLIP         3.0  /* times the mean: limit of what one sample may show */
#define ROW_COST_PRIOR    0.35 /* of t_base: a batch of 1 with misses, before measuring */
#define CARRIED           16.0 /* most tokens that an earlier run counts for, in each cell */
#define COST_STRENGTH     32.0 /* weight of the line, against the samples of a width */
#define LEAST_BURST       0.5
#define MOST_BURST        2.0
#define FRESH_MEMORY      16u /* plain passes */
#define RESIDENT_MEMORY   4u  /* plain passes */
/* Acceptance of the first token of a draft that is restricted to experts in memory, from the share
 * of the choices that are: the least-squares line of six measurements of the demo model in batches
 * of eight (share, accepted): 0.28, 0.15; 0.54, 0.57; 0.56, 0.78; 0.79, 0.87; 0.82, 0.92; 0.94,
 * 0.97. */
#define RESIDENT_SLOPE  1.2
#define RESIDENT_OFFSET (-0.08)
#define RESIDENT_MOST   0.95
/* Below what was seen, or guessed, when asking what a draft may lose. */
#define DEVIATIONS_SEEN    2.0
#define DEVIATIONS_GUESSED 1.0
#define MANY_SEQUENCES     8.0
#define REST_DECAY         0.96 /* of what was seen, at each iteration that drafts nothing */

/* ---- From and for other runs ---- */

/* What another text has shown is soon outweighed by this one. */
static moe_acceptance_count carried(const moe_draft_tally *tally)
{
    double share = tally->seen > CARRIED ? CARRIED / (double)tally->seen : 1;
    return (moe_acceptance_count){share * (double)tally->seen, share * (double)tally->accepted};
}

static moe_draft_tally tally_of(const moe_acceptance_count *count)
{
    return (moe_draft_tally){(float)count->seen, (float)count->accepted};
}

static void carry(moe_length_prices *s, const moe_draft_habit *habit, moe_draft_tier tier)
{
    const moe_draft_costs *costs = &habit->costs[tier];
    for (uint32_t d = 0; d < MOE_PRICES_DEPTHS; d++) {
        s->depths[d] = carried(&habit->depths[d]);
        for (uint32_t b = 0; b < MOE_PRICES_BUCKETS; b++) {
            s->cells[d][b] = carried(&habit->cells[d][b]);
        }
    }
    for (uint32_t b = 0; b < MOE_PRICES_BUCKETS; b++) {
        s->buckets[b] = carried(&habit->buckets[b]);
    }
    if (costs->n > 0) {
        s->first_slope = (double)costs->row;
        s->first_fetch_slope = (double)costs->row_fetch;
        s->draft_pass.mean = (double)costs->pass;
        s->draft_pass.n = costs->pass > 0;
    }
}

bool moe_length_prices_get_habit(const moe_length_prices *s, moe_draft_tier tier,
                                 moe_draft_habit *habit)
{
    for (uint32_t d = 0; d < MOE_PRICES_DEPTHS; d++) {
        habit->depths[d] = tally_of(&s->depths[d]);
        for (uint32_t b = 0; b < MOE_PRICES_BUCKETS; b++) {
            habit->cells[d][b] = tally_of(&s->cells[d][b]);
        }
    }
    for (uint32_t b = 0; b < MOE_PRICES_BUCKETS; b++) {
        habit->buckets[b] = tally_of(&s->buckets[b]);
    }
    if (s->n_priced > 0) {
        habit->costs[tier] = (moe_draft_costs){.n = (float)s->n_priced,
                                               .row = (float)s->slope,
                                               .row_fetch = (float)s->fetch_slope,
                                               .pass = (float)s->draft_pass.mean};
    }
    return s->depths[0].seen > 0;
}

void moe_length_prices_init(moe_length_prices *prices, const moe_length_options *options)
{
    prices->first_draft_pass = options->draft_pass;
    prices->row_compute = options->row_compute > 0 ? options->row_compute : 1;
    prices->first_slope = ROW_COST_PRIOR;
    if (options->habit != NULL) {
        carry(prices, options->habit, options->tier);
    }
    prices->slope = prices->first_slope;
    prices->fetch_slope = prices->first_fetch_slope;
    for (uint32_t i = 0; i < MOE_LENGTH_FRESH; i++) {
        prices->fresh[i].mean = 1;
    }
}

/* ---- Acceptance ---- */

static uint32_t bucket_of(float confidence)
{
    uint32_t b = (uint32_t)(confidence * MOE_PRICES_BUCKETS);
    return b < MOE_PRICES_BUCKETS ? b : MOE_PRICES_BUCKETS - 1;
}

static uint32_t depth_index(uint32_t depth)
{
    return depth == 0 ? 0 : depth > MOE_PRICES_DEPTHS ? MOE_PRICES_DEPTHS - 1 : depth - 1;
}

static double posterior(const moe_acceptance_count *count, double prior)
{
    return (count->accepted + PRIOR_STRENGTH * prior) / (count->seen + PRIOR_STRENGTH);
}

static void count_add(moe_acceptance_count *count, bool accepted)
{
    count->seen = count->seen * CALIBRATION_DECAY + 1;
    count->accepted = count->accepted * CALIBRATION_DECAY + accepted;
}

double moe_length_prices_survival(const moe_length_prices *s, uint32_t depth, float confidence)
{
    uint32_t b = bucket_of(confidence);
    double prior = posterior(&s->buckets[b], 0.05 + 0.85 * confidence);
    return posterior(&s->cells[depth_index(depth)][b], prior);
}

/* Of a first token in a batch, before one was seen. */
static double first_prior(const moe_length_prices *s)
{
    if (s->resident.n == 0) {
        return 0.5;
    }
    double p = RESIDENT_SLOPE * s->resident.mean + RESIDENT_OFFSET;
    return p < 0 ? 0 : p > RESIDENT_MOST ? RESIDENT_MOST : p;
}

double moe_length_prices_at_depth(const moe_length_prices *s, uint32_t depth)
{
    uint32_t at = depth_index(depth);
    if (s->n_sequences >= MOE_LENGTH_BATCH) { /* as the one before it, until seen itself */
        double p = first_prior(s);
        for (uint32_t i = 0; i <= at; i++) {
            p = posterior(&s->depths[i], p);
        }
        return p;
    }
    return posterior(&s->depths[at],
                     depth > 1 ? posterior(&s->depths[depth_index(depth - 1)], 0.5) : 0.5);
}

void moe_length_prices_note(moe_length_prices *s, uint32_t depth, float confidence, bool accepted)
{
    uint32_t b = bucket_of(confidence);
    count_add(&s->cells[depth_index(depth)][b], accepted);
    count_add(&s->buckets[b], accepted);
    count_add(&s->depths[depth_index(depth)], accepted);
}

static void fade(moe_acceptance_count *count)
{
    count->seen *= REST_DECAY;
    count->accepted *= REST_DECAY;
}

void moe_length_prices_rest(moe_length_prices *s)
{
    for (uint32_t d = 0; d < MOE_PRICES_DEPTHS; d++) {
        fade(&s->depths[d]);
    }
}

/* ---- Costs ---- */

static void mean_add(moe_running_mean *m, double value, uint32_t memory)
{
    if (m->n > 0 && m->mean > 0 && value > COST_CLIP * m->mean) {
        value = COST_CLIP * m->mean;
    }
    m->n += m->n < memory;
    m->mean += (value - m->mean) / m->n;
}

/* The mean of 1 to MOE_PRICES_BASE_MEMORY values, without those above OUTLIER times the (lower)
 * median. */
static double mean_without_outliers(const double *values, uint32_t n)
{
    double sorted[MOE_PRICES_BASE_MEMORY];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = values[i];
    }
    double sum = 0, limit = OUTLIER * sorted[(n - 1) / 2];
    uint32_t n_summed = 0;
    while (n_summed < n && sorted[n_summed] <= limit) {
        sum += sorted[n_summed++];
    }
    return sum / n_summed;
}

/* So many rows of each sequence, in rows that ask for experts of their own. */
static double fresh_rows(const moe_length_prices *s, uint32_t rows)
{
    double sum = 0;
    for (uint32_t i = 0; i < rows; i++) {
        sum += s->fresh[i < MOE_LENGTH_FRESH ? i : MOE_LENGTH_FRESH - 1].mean;
    }
    return sum;
}

/* Before measuring. A row of each sequence costs no more computing than a plain pass, and asks for
 * as many experts. For one sequence the prior for computing stands for both. */
static double slope_prior(const moe_length_prices *s)
{
    double computed = s->row_compute * s->compute[0].mean;
    return s->n_sequences >= MOE_LENGTH_BATCH && computed < s->first_slope ? computed
                                                                           : s->first_slope;
}

static double fetch_slope_prior(const moe_length_prices *s)
{
    return s->n_sequences >= MOE_LENGTH_BATCH ? s->fetch[0].mean : s->first_fetch_slope;
}

/* The running mean if there is one, pulled to the line through the widths seen. x: of the line. */
static double width_ratio(const moe_running_mean *widths, double slope, uint32_t rows, double x)
{
    double line = widths[0].mean + slope * x;
    if (rows >= MOE_PRICES_WIDTHS) {
        return line;
    }
    const moe_running_mean *m = &widths[rows];
    return (m->n * m->mean + COST_STRENGTH * line) / (m->n + COST_STRENGTH);
}

/* Of the first pass only this is known: it waits for no expert. */
double moe_length_prices_draft(const moe_length_prices *s)
{
    return s->draft_pass.n > 0 ? s->draft_pass.mean : s->first_draft_pass * s->compute[0].mean;
}

double moe_length_prices_verify(const moe_length_prices *s, uint32_t rows, double fetch)
{
    double slope = s->n_priced > 0 ? s->slope : slope_prior(s);
    double fetch_slope = s->n_priced > 0 ? s->fetch_slope : fetch_slope_prior(s);
    double usual =
        fetch >= 0 ? fetch : width_ratio(s->fetch, fetch_slope, rows, fresh_rows(s, rows));
    return width_ratio(s->compute, slope, rows, rows) + usual;
}

static double added_by_all(const moe_length_prices *s, uint32_t rows)
{
    return moe_length_prices_verify(s, rows, -1) - moe_length_prices_verify(s, 0, -1);
}

/* From no row to a row of each sequence the cost rises along a hyperbola: first by what a lone row
 * asks for, at the end by as much as a row of each is known to cost. */
double moe_length_prices_added(const moe_length_prices *s, uint32_t rows, uint32_t n_drafting)
{
    if (n_drafting == 0 || n_drafting >= s->n_sequences || s->n_sequences < MOE_LENGTH_BATCH) {
        return added_by_all(s, rows);
    }
    double x = (double)rows * n_drafting / s->n_sequences, whole = floor(x);
    if (whole >= 1) {
        double low = added_by_all(s, (uint32_t)whole), high = added_by_all(s, (uint32_t)whole + 1);
        return low + (x - whole) * (high - low);
    }
    double each = added_by_all(s, 1);
    double lone = s->alone.mean * s->compute[0].mean + s->missed_alone.mean * s->fetch[0].mean;
    return lone > each && each > 0 ? lone * x / (1 + (lone / each - 1) * x) : each * x;
}

/* Least squares through the plain cost, with the prior counting as one sample at one row. */
static double fit_slope(const moe_length_prices *s, const moe_running_mean *widths, double prior,
                        bool shares)
{
    double first = shares ? fresh_rows(s, 1) : 1;
    double product = prior * first * first, square = first * first;
    for (uint32_t r = 1; r < MOE_PRICES_WIDTHS; r++) {
        double x = shares ? fresh_rows(s, r) : r;
        product += widths[r].n * x * (widths[r].mean - widths[0].mean);
        square += widths[r].n * x * x;
    }
    double slope = square > 0 ? product / square : prior;
    return slope > 0 ? slope : 0;
}

static double cost_at(const moe_length_prices *s, uint32_t depth)
{
    return moe_length_prices_verify(s, depth, -1) + depth * moe_length_prices_draft(s);
}

/* For a batch relative to plain passes of the same time, whose misses are more than those of later
 * ones. */
static double plain_cost(const moe_length_prices *s)
{
    return s->n_sequences >= MOE_LENGTH_BATCH ? moe_length_prices_verify(s, 0, -1) : 1;
}

double moe_length_prices_utility(const moe_length_prices *s, uint32_t max_depth)
{
    double path = 1, tokens = 1, best = 0;
    for (uint32_t d = 1; d <= max_depth && d <= MOE_PRICES_DEPTHS; d++) {
        path *= moe_length_prices_at_depth(s, d);
        tokens += path;
        double utility = tokens * plain_cost(s) / cost_at(s, d);
        best = utility > best ? utility : best;
    }
    return best;
}

bool moe_length_prices_pays_on(const moe_length_prices *s, uint32_t depth, double path, double rate,
                               uint32_t most, uint32_t n_sharing)
{
    bool many = s->n_sequences >= MOE_LENGTH_BATCH && n_sharing > 0;
    double tokens = 0, before = cost_at(s, depth);
    double alone = many ? (double)s->n_sequences / n_sharing - 1 : 0;
    uint32_t last = s->n_sequences >= MOE_LENGTH_BATCH ? most : 1;
    for (uint32_t n = 1; n <= last; n++) {
        path *= moe_length_prices_at_depth(s, depth + n);
        tokens += path;
        double pass = n * moe_length_prices_draft(s);
        double more = cost_at(s, depth + n) - before + alone * pass;
        pass *= 1 + alone;
        if (tokens > rate * (more > pass ? more : pass)) {
            return true;
        }
    }
    return false;
}

/* Few sequences may all be refused together. */
static double deviations_of(const moe_length_prices *s)
{
    double few = MANY_SEQUENCES / s->n_sequences;
    double many = moe_length_prices_guesses(s) ? DEVIATIONS_GUESSED : DEVIATIONS_SEEN;
    return many * (few > 1 ? few * few : 1);
}

uint32_t moe_length_prices_affordable(const moe_length_prices *s, uint32_t most, double left,
                                      bool heard, uint32_t n_drafting)
{
    uint32_t affordable = 0;
    bool guessed = !heard && s->resident.n > 0, few = n_drafting < s->n_sequences;
    double deviations = deviations_of(s), share = few ? (double)n_drafting / s->n_sequences : 1;
    double path = heard || guessed, gain = 0, unlucky_path = path, unlucky_gain = 0;
    for (uint32_t n = 1; n <= most; n++) {
        double p = moe_length_prices_at_depth(s, n), seen = s->depths[depth_index(n)].seen;
        seen = guessed && seen < s->n_sequences ? s->n_sequences : seen;
        /* Of what is known of p, and of the few tokens that one pass draws. */
        double known = p * (1 - p) / (1 + seen), drawn = p * (1 - p) / n_drafting;
        double unlucky = p - deviations * sqrt(known + drawn);
        double low = few ? unlucky : p - deviations * sqrt(known);
        path *= low > 0 ? low : 0;
        gain += path;
        unlucky_path *= unlucky > 0 ? unlucky : 0;
        unlucky_gain += unlucky_path;
        double cost = moe_length_prices_added(s, n, n_drafting) + n * moe_length_prices_draft(s);
        bool spared = !moe_length_prices_guesses(s); /* a layer would draft too late to win */
        bool may = cost - share * gain <= left && (spared || cost - share * unlucky_gain <= left);
        affordable = may ? n : affordable;
    }
    return affordable;
}

uint32_t moe_length_prices_best_depth(const moe_length_prices *s, uint32_t max_depth)
{
    uint32_t best = 1;
    double greatest = 0;
    for (uint32_t d = 1; d <= max_depth; d++) {
        double utility = moe_length_prices_tokens(s, d) / cost_at(s, d);
        best = utility > greatest ? d : best;
        greatest = utility > greatest ? utility : greatest;
    }
    return best;
}

double moe_length_prices_tokens(const moe_length_prices *s, uint32_t depth)
{
    double path = 1, tokens = 1;
    for (uint32_t d = 1; d <= depth; d++) {
        path *= moe_length_prices_at_depth(s, d);
        tokens += path;
    }
    return tokens;
}

bool moe_length_prices_guesses(const moe_length_prices *s)
{
    return s->n_sequences >= MOE_LENGTH_BATCH && s->resident.n > 0;
}

bool moe_length_prices_in_doubt(const moe_length_prices *s)
{
    return s->last_plain < FASTER * s->compute_base;
}

/* A t_base that is too high hides losses, and while drafts go on its memory reaches far back. */
static void forget_slower(moe_length_prices *s, double base, double cost)
{
    if (s->last_plain < FASTER * base && cost < FASTER * base && s->n_plain > 2) {
        s->plain[0] = s->last_plain;
        s->plain[1] = cost;
        s->n_plain = 2;
    }
    s->last_plain = cost;
}

/* A pass of a batch averages over its sequences. */
static uint32_t samples_of(uint32_t samples, uint32_t n_sequences)
{
    uint32_t n = n_sequences < MOE_LENGTH_BATCH ? samples : samples / n_sequences;
    uint32_t least = n_sequences < MANY_SAMPLES ? LEAST_SAMPLES : 1;
    return n > least ? n : least;
}

uint32_t moe_length_prices_first_samples(uint32_t n_sequences)
{
    return samples_of(MOE_PRICES_FIRST_SAMPLES, n_sequences);
}

static void learn_sharing(moe_length_prices *s, const moe_length_iteration *it)
{
    bool is_batch = it->models_misses && it->n_sequences >= MOE_LENGTH_BATCH;
    if (is_batch && it->resident_share >= 0) {
        mean_add(&s->resident, it->resident_share, RESIDENT_MEMORY);
    }
    if (is_batch && it->alone >= 0) {
        mean_add(&s->alone, it->alone, FRESH_MEMORY);
    }
    if (is_batch && it->missed_alone >= 0) {
        mean_add(&s->missed_alone, it->missed_alone, FRESH_MEMORY);
    }
    for (uint32_t i = 0; i < MOE_LENGTH_FRESH; i++) {
        if (!is_batch) {
            s->fresh[i] = (moe_running_mean){.mean = 1};
        }
        if (is_batch && it->fresh[i] >= 0) {
            mean_add(&s->fresh[i], it->fresh[i], FRESH_MEMORY);
        }
    }
    s->n_sequences = it->n_sequences;
}

/* What the iteration waited for experts, had plain decoding of the same tokens missed as many as it
 * usually does: misses come in bursts. Of a batch; for one sequence they are taken as they come. */
static double usual_fetch(const moe_length_prices *s, const moe_length_iteration *it, uint32_t rows)
{
    bool is_batch = it->models_misses && it->n_sequences >= MOE_LENGTH_BATCH;
    if (!is_batch || rows == 0 || it->plain_fetch <= 0 || it->n_emitted == 0) {
        return it->fetch_cost;
    }
    double usual = s->plain_fetch * it->n_emitted / it->plain_fetch;
    usual = usual < LEAST_BURST ? LEAST_BURST : usual > MOST_BURST ? MOST_BURST : usual;
    return it->fetch_cost * usual;
}

void moe_length_prices_learn(moe_length_prices *s, moe_length_base *base,
                             const moe_length_iteration *it)
{
    bool plain = moe_length_is_plain(it);
    double n = it->n_sequences;
    learn_sharing(s, it);
    if (plain && s->n_cold < samples_of(COLD_SAMPLES, it->n_sequences)) {
        s->n_cold++;
        return;
    }
    if (it->models_misses) {
        double tokens = it->n_emitted > 0 ? it->n_emitted : 1;
        double weight = s->plain_fetch == 0 ? 1 : tokens / n / FETCH_MEMORY;
        s->plain_fetch += weight * (it->plain_fetch / tokens - s->plain_fetch);
    }
    if (plain) {
        double cost = (it->verify_cost - (it->models_misses ? it->fetch_cost : 0)) / n;
        s->plain[s->n_plain++ % MOE_PRICES_BASE_MEMORY] = cost;
        base->n_samples += base->n_samples < MOE_PRICES_BASE_MEMORY;
        uint32_t n_kept = s->n_plain < MOE_PRICES_BASE_MEMORY ? s->n_plain : MOE_PRICES_BASE_MEMORY;
        if (n_kept >= moe_length_prices_first_samples(it->n_sequences) ||
            base->n_samples <= n_kept) {
            s->compute_base = mean_without_outliers(s->plain, n_kept);
            forget_slower(s, s->compute_base, cost);
        }
        base->age = 0;
    }
    base->cost = s->compute_base > 0 ? s->compute_base + s->plain_fetch : 0;
    double unit = base->cost * n;
    if (unit <= 0) {
        return;
    }
    uint32_t extra = it->n_rows > it->n_sequences ? it->n_rows - it->n_sequences : 0;
    uint32_t rows = (extra + it->n_sequences / 2) / it->n_sequences;
    /* A few rows of a batch are neither a plain pass nor one of a row for each sequence. */
    bool is_partial = extra > 0 && rows == 0 && it->n_sequences >= MOE_LENGTH_BATCH;
    if (rows < MOE_PRICES_WIDTHS && !is_partial) {
        /* The first sample of a width may be an outlier, so the line gives the expected cost. */
        double limit = OUTLIER * moe_length_prices_verify(s, rows, -1) * unit;
        double kept = it->verify_cost > limit && limit > 0 ? limit / it->verify_cost : 1;
        mean_add(&s->compute[rows], kept * (it->verify_cost - it->fetch_cost) / unit, COST_MEMORY);
        mean_add(&s->fetch[rows], kept * usual_fetch(s, it, rows) / unit, COST_MEMORY);
    }
    if (it->n_draft_passes > 0) {
        mean_add(&s->draft_pass, it->draft_cost / it->n_draft_passes / unit, COST_MEMORY);
    }
    if (!plain && extra > 0) {
        s->slope = fit_slope(s, s->compute, slope_prior(s), false);
        s->fetch_slope = fit_slope(s, s->fetch, fetch_slope_prior(s), true);
        s->n_priced += s->n_priced < COST_MEMORY;
    }
}
