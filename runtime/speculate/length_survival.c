/* SPDX-License-Identifier: MIT */
/* Prices a token before it is drafted or verified, under a guard that owns a budget of lost time.
 *
 * Prices. A token is worth its row when
 *     P(path is accepted)  >  rate * (cost of one row more, with its misses),
 * where rate is the greater of plain decoding's tokens per cost and of what speculation has reached
 * lately: the stationary optimum of tokens per cost. P is calibrated: counts by depth and
 * confidence bucket, decayed, on a prior that is the bucket's count over all depths, whose own
 * prior is the confidence. Costs are kept as ratios to t_base, by rows and with fetches apart, so
 * everything (a longer KV cache, a slower clock) moves none of them. Plain samples far off their
 * median are left out of t_base and speculating ones are clipped at a multiple of what was
 * expected, so that a stalled machine is not taken for the price of a draft.
 *
 * Guard. An account (length_account.h) says how much may be lost: a share of what plain decoding of
 * the tokens so far would have cost. No draft is longer than what is left would pay for, were all
 * of it refused that is not nearly sure. Drafts begin short: K doubles when all of a draft stood.
 *
 * Silent drafts. While K is 0 a drafter that costs nothing (n-grams) drafts all the same, and what
 * it would have drafted is compared with what is written. So acceptance is known before anything
 * was paid for: what promises little is not tried, what promises much is tried at once and with a
 * larger share.
 *
 * Won and lost: where misses are modelled, against what plain decoding would have missed for the
 * very same tokens (miss_model.h). Misses come in bursts and are fewer where drafts are good, so a
 * t_base of other moments would take easy text for a gain; and plain passes pay for what refused
 * drafts have pushed out.
 *
 *             plain iterations         wait over or much promised, enough left
 *   WARM_UP -------------------> OFF --------------------------> PROBE
 *                                 ^  <-- probe_end(): U < 1 ------ |
 *                                 |                                | probe_end(): U >= 1, or the
 *                                 |  window's U < 1, nothing left  v prices say that it pays
 *                                 +------------------------------ ON
 *
 * The wait doubles with each failure, which keeps hopeless text far below what may be lost. t_base
 * is measured in all plain iterations; while ON one in REFRESH_INTERVAL is made plain for it, or in
 * REFRESH_CLOSE where little is won. */
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/speculate/length_account.h"
#include "runtime/speculate/length_controller.h"

#define N_DEPTH  16u
#define N_BUCKET 8u
#define N_WIDTH  32u

#define CALIBRATION_DECAY 0.98 /* of a count, for each new one: a memory of 50 */
#define PRIOR_STRENGTH    4.0
#define BASE_MEMORY       16u /* samples of a running mean */
#define COST_MEMORY       64u
#define FIRST_SAMPLES     8u
#define FETCH_MEMORY      64.0 /* tokens */
#define COLD_SAMPLES      8u   /* the first of all: caches are cold, and they say nothing */
#define FASTER            0.75 /* two plain samples in a row this far below t_base replace it */
#define OUTLIER           2.5
#define COST_CLIP         3.0
#define ROW_COST_PRIOR    0.35 /* of t_base: a batch of 1 with misses, before anything is known */
#define COST_STRENGTH     32.0 /* of the line, against the samples of a width */

/* With the second controller's share 1.8 % of the 2 % that speculation may cost; the rest is for
 * what the last drafts cost beyond expectation. */
#define SHARE        0.008
#define MORE         0.007
#define SECOND_SHARE 0.003
#define ROW_MISSES   1.5 /* of a refused row, over a plain token's: it belongs to another text */
#define EXPLORE_LEFT 3.0 /* in t_base */

#define PROBE_ITERATIONS 6u
#define FIRST_WAIT       16u
#define MAX_WAIT         2048u
#define FIRST_REACH      2u
#define WINDOW           32u
#define REFRESH_INTERVAL 32u
#define REFRESH_CLOSE    12u /* ... where little is won, so that an old t_base could hide a loss */
#define CLOSE            1.15
#define RATE_MEMORY      64.0
#define EXPLORE_INTERVAL 16u
#define PAYS             1.03 /* predicted utility that turns speculation on after a probe */
#define PROMISING        1.3  /* ... and that makes waiting before one needless */
#define HEARD            8u   /* tokens of silent drafts, before they tell anything */
#define SURE_TOKENS      3.0 /* of drafts so long, by which they promise much whatever rows cost: */
#define SURE_DEPTH       4u  /* what long drafts cost is not known before one was verified */

typedef enum survival_mode { MODE_OFF, MODE_PROBE, MODE_ON } survival_mode;

typedef struct survival_count {
    double seen, accepted;
} survival_count;

typedef struct survival_mean {
    double mean;
    uint32_t n;
} survival_mean;

typedef struct survival_state {
    survival_count cells[N_DEPTH][N_BUCKET];
    survival_count buckets[N_BUCKET];
    survival_count depths[N_DEPTH];
    double plain[BASE_MEMORY]; /* ring of the latest plain costs of a sequence's token */
    uint32_t n_plain;
    uint32_t n_cold;
    double last_plain;
    /* Where misses are modelled, `plain` is without what was waited for experts, and this is what
     * plain decoding would have waited, a sequence's token. */
    double plain_fetch;
    double compute_base;
    /* Ratios to the t_base of all sequences. Index: rows drafted a sequence; 0: plain. */
    survival_mean compute[N_WIDTH], fetch[N_WIDTH];
    survival_mean draft_pass;
    double slope, fetch_slope;     /* a row more, where no width was seen */
    double rate_tokens, rate_cost; /* running means while ON, of an iteration */
    survival_mode mode;
    moe_length_account account;
    uint32_t n_heard; /* tokens of silent drafts, up to HEARD */
    bool promising;
    uint32_t wait, waited; /* plain iterations before a probe */
    uint32_t probe_depth, n_probes;
    uint32_t reach; /* ON: K's ceiling, which grows as drafts stand to their end */
    /* The probe, or the window while ON. */
    uint32_t n_done;
    double tokens, cost;
    uint32_t n_on; /* iterations in this stay */
    bool refreshing, exploring;
} survival_state;

static void mean_add(survival_mean *m, double value, uint32_t memory)
{
    if (m->n > 0 && m->mean > 0 && value > COST_CLIP * m->mean) {
        value = COST_CLIP * m->mean;
    }
    m->n += m->n < memory;
    m->mean += (value - m->mean) / m->n;
}

/* Of 1 to BASE_MEMORY values: the mean of those that are no more than OUTLIER times the (lower)
 * median. */
static double mean_without_outliers(const double *values, uint32_t n)
{
    double sorted[BASE_MEMORY];
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

static uint32_t bucket_of(float confidence)
{
    uint32_t b = (uint32_t)(confidence * N_BUCKET);
    return b < N_BUCKET ? b : N_BUCKET - 1;
}

static uint32_t depth_index(uint32_t depth)
{
    return depth == 0 ? 0 : depth > N_DEPTH ? N_DEPTH - 1 : depth - 1;
}

static double posterior(const survival_count *count, double prior)
{
    return (count->accepted + PRIOR_STRENGTH * prior) / (count->seen + PRIOR_STRENGTH);
}

static void count_add(survival_count *count, bool accepted)
{
    count->seen = count->seen * CALIBRATION_DECAY + 1;
    count->accepted = count->accepted * CALIBRATION_DECAY + accepted;
}

static double survival_of(const moe_length_control *control, uint32_t depth, float confidence)
{
    const survival_state *s = control->state;
    uint32_t b = bucket_of(confidence);
    double prior = posterior(&s->buckets[b], 0.05 + 0.85 * confidence);
    return posterior(&s->cells[depth_index(depth)][b], prior);
}

static void survival_note(moe_length_control *control, uint32_t depth, float confidence,
                          bool accepted)
{
    survival_state *s = control->state;
    uint32_t b = bucket_of(confidence);
    count_add(&s->cells[depth_index(depth)][b], accepted);
    count_add(&s->buckets[b], accepted);
    count_add(&s->depths[depth_index(depth)], accepted);
    s->n_heard += control->draft_length == 0 && s->n_heard < HEARD;
}

static bool survival_listens(const moe_length_control *control)
{
    return control->draft_length == 0;
}

/* A running mean where there is one, drawn to the line through the widths seen. */
static double width_ratio(const survival_mean *widths, double slope, uint32_t rows)
{
    double line = widths[0].mean + slope * rows;
    if (rows >= N_WIDTH) {
        return line;
    }
    const survival_mean *m = &widths[rows];
    return (m->n * m->mean + COST_STRENGTH * line) / (m->n + COST_STRENGTH);
}

/* Of a verification of rows drafted ones, in t_base; fetch < 0: not known, as usual. */
static double verify_ratio(const survival_state *s, uint32_t rows, double fetch)
{
    double usual = fetch >= 0 ? fetch : width_ratio(s->fetch, s->fetch_slope, rows);
    return width_ratio(s->compute, s->slope, rows) + usual;
}

/* Least squares through the plain cost, with the prior as if one sample at one row had shown it. */
static double fit_slope(const survival_mean *widths, double prior)
{
    double product = prior, square = 1;
    for (uint32_t r = 1; r < N_WIDTH; r++) {
        product += widths[r].n * (double)r * (widths[r].mean - widths[0].mean);
        square += widths[r].n * (double)r * r;
    }
    double slope = product / square;
    return slope > 0 ? slope : 0;
}

static double rate_in_use(const survival_state *s)
{
    bool faster = s->mode == MODE_ON && s->rate_tokens > s->rate_cost && s->rate_cost > 0;
    return faster ? s->rate_tokens / s->rate_cost : 1;
}

static double depth_survival(const survival_state *s, uint32_t depth)
{
    const survival_count *nearest = &s->depths[depth_index(depth)];
    return posterior(nearest, depth > 1 ? posterior(&s->depths[depth_index(depth - 1)], 0.5) : 0.5);
}

/* The best utility that any fixed depth promises. */
static double predicted_utility(const moe_length_control *control)
{
    const survival_state *s = control->state;
    double path = 1, tokens = 1, best = 0;
    for (uint32_t d = 1; d <= control->options.max_draft && d <= N_DEPTH; d++) {
        path *= depth_survival(s, d);
        tokens += path;
        double utility = tokens / (verify_ratio(s, d, -1) + d * s->draft_pass.mean);
        best = utility > best ? utility : best;
    }
    return best;
}

static bool survival_go_on(const moe_length_control *control, uint32_t depth, double path_survival)
{
    const survival_state *s = control->state;
    if (s->mode == MODE_PROBE || (s->exploring && depth < 2)) {
        return true; /* up to K */
    }
    double gain = (s->exploring ? 1.5 : 1) * path_survival * depth_survival(s, depth + 1);
    double row = verify_ratio(s, depth + 1, -1) - verify_ratio(s, depth, -1);
    return gain > rate_in_use(s) * ((row > 0 ? row : 0) + s->draft_pass.mean);
}

/* What is drafted is paid for: of tokens - rate * cost the greatest, ties to the shorter. */
static uint32_t survival_cut(const moe_length_control *control, const double *survival,
                             const double *fetch_cost, uint32_t n)
{
    const survival_state *s = control->state;
    n = n < control->draft_length ? n : control->draft_length;
    if (s->mode == MODE_PROBE || n == 0) {
        return n;
    }
    double base = control->base->cost, rate = rate_in_use(s);
    double tokens = 0, best = 0;
    uint32_t best_length = 0;
    for (uint32_t i = 0; i <= n; i++) {
        double fetch = fetch_cost != NULL && base > 0 ? fetch_cost[i] / base : -1;
        double value = tokens - rate * verify_ratio(s, i, fetch);
        if (i == 0 || value > best) {
            best = value;
            best_length = i;
        }
        tokens += i < n ? survival[i] : 0;
    }
    uint32_t explore = best_length + 2 < n ? best_length + 2 : n;
    return s->exploring ? explore : best_length;
}

static void turn_off(moe_length_control *control, bool failed)
{
    survival_state *s = control->state;
    if (s->mode == MODE_ON) {
        control->report.n_disabled++;
    }
    if (failed && s->wait < MAX_WAIT) {
        s->wait *= 2;
    }
    s->mode = MODE_OFF;
    s->waited = 0;
}

static void part_reset(survival_state *s)
{
    s->n_done = 0;
    s->tokens = s->cost = 0;
}

/* Of a verification of SURE_DEPTH drafted tokens. */
static double expected_tokens(const survival_state *s)
{
    double path = 1, tokens = 1;
    for (uint32_t d = 1; d <= SURE_DEPTH; d++) {
        path *= depth_survival(s, d);
        tokens += path;
    }
    return tokens;
}

/* The longest draft up to this whose loss may be lost: were all of it refused, or where silent
 * drafts have told how likely that is, less of the rows that are nearly sure. */
static uint32_t affordable(const moe_length_control *control, uint32_t length)
{
    const survival_state *s = control->state;
    double base = control->base->cost, unit = base * control->n_sequences;
    double left = moe_length_account_left(&s->account, s->promising, unit) / unit;
    /* Of a draft's pass no more is known at first than that it waits for nothing. */
    double pass = s->draft_pass.n > 0 ? s->draft_pass.mean : s->compute[0].mean;
    pass = control->options.by_passes ? pass : 0;
    /* The first row may be dearer than expected; more of them must not all be. */
    double row = verify_ratio(s, 1, -1) - verify_ratio(s, 0, -1) + pass;
    double path = 1, loss = 0;
    for (uint32_t n = 0; n < length; n++) {
        path *= depth_survival(s, n + 1);
        /* A calibration of few tokens is trusted where it is nearly sure, and there alone. */
        double stands = s->n_heard >= HEARD ? path * path * path * path : 0;
        loss += row * (1 - stands);
        if (loss > left) {
            return n;
        }
        row = s->slope + pass + ROW_MISSES * s->plain_fetch / base;
    }
    return length;
}

static bool should_probe(const moe_length_control *control, double promise)
{
    const survival_state *s = control->state;
    bool waited = s->waited >= s->wait && (s->n_heard < HEARD || promise >= 1);
    return (waited || s->promising) && affordable(control, 1) > 0;
}

static uint32_t survival_begin(moe_length_control *control)
{
    static const uint32_t depths[] = {1, 2};
    survival_state *s = control->state;
    const moe_length_base *base = control->base;
    s->refreshing = s->exploring = false;
    if (control->n_sequences_changed) {
        s->n_plain = 0;
    }
    if (base->n_samples < FIRST_SAMPLES || base->cost <= 0) {
        return 0;
    }
    double promise = predicted_utility(control);
    bool is_sure = s->n_heard >= HEARD && expected_tokens(s) >= SURE_TOKENS;
    s->promising = is_sure || (s->n_heard >= HEARD && promise >= PROMISING);
    if (s->mode == MODE_OFF && should_probe(control, promise)) {
        s->mode = MODE_PROBE;
        uint32_t depth = depths[s->n_probes++ % (sizeof depths / sizeof *depths)];
        depth = is_sure ? SURE_DEPTH : depth;
        uint32_t max = control->options.max_draft;
        s->probe_depth = depth < max ? depth : max;
        part_reset(s);
    }
    if (s->mode == MODE_OFF) {
        return 0;
    }
    /* A second sample tells a lower t_base from noise; until then losses may look like gains. */
    bool is_in_doubt = base->age == 0 && s->last_plain < FASTER * s->compute_base;
    if (is_in_doubt || base->age >= (rate_in_use(s) < CLOSE ? REFRESH_CLOSE : REFRESH_INTERVAL)) {
        s->refreshing = true;
        return 0;
    }
    s->exploring = s->mode == MODE_ON && s->n_on % EXPLORE_INTERVAL == EXPLORE_INTERVAL - 1 &&
                   s->account.left > EXPLORE_LEFT * base->cost * control->n_sequences;
    uint32_t max = control->options.max_draft;
    uint32_t wanted = s->mode == MODE_PROBE ? s->probe_depth : s->reach < max ? s->reach : max;
    return affordable(control, wanted);
}

/* A t_base that is too high hides losses, and while ON its memory reaches far back. */
static void forget_slower(survival_state *s, double base, double cost)
{
    if (s->last_plain < FASTER * base && cost < FASTER * base && s->n_plain > 2) {
        s->plain[0] = s->last_plain;
        s->plain[1] = cost;
        s->n_plain = 2;
    }
    s->last_plain = cost;
}

static void learn_costs(moe_length_control *control, const moe_length_iteration *it, bool plain)
{
    survival_state *s = control->state;
    moe_length_base *base = control->base;
    double n = it->n_sequences;
    if (plain && s->n_cold < COLD_SAMPLES) {
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
        s->plain[s->n_plain++ % BASE_MEMORY] = cost;
        base->n_samples += base->n_samples < BASE_MEMORY;
        uint32_t n_kept = s->n_plain < BASE_MEMORY ? s->n_plain : BASE_MEMORY;
        if (n_kept >= FIRST_SAMPLES || base->n_samples <= n_kept) {
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
    if (rows < N_WIDTH) {
        /* The first sample of a width may be an outlier: the line says what to expect. */
        double limit = OUTLIER * verify_ratio(s, rows, -1) * unit;
        double kept = it->verify_cost > limit && limit > 0 ? limit / it->verify_cost : 1;
        mean_add(&s->compute[rows], kept * (it->verify_cost - it->fetch_cost) / unit, COST_MEMORY);
        mean_add(&s->fetch[rows], kept * it->fetch_cost / unit, COST_MEMORY);
    }
    if (it->n_draft_passes > 0) {
        mean_add(&s->draft_pass, it->draft_cost / it->n_draft_passes / unit, COST_MEMORY);
    }
    if (!plain) {
        s->slope = fit_slope(s->compute, ROW_COST_PRIOR);
        s->fetch_slope = fit_slope(s->fetch, 0);
    }
}

static void part_end(moe_length_control *control)
{
    survival_state *s = control->state;
    double utility = s->cost > 0 ? s->tokens / s->cost : 1;
    if (s->mode == MODE_PROBE) {
        bool measured = utility >= 1;
        if (measured || predicted_utility(control) >= PAYS) {
            s->mode = MODE_ON;
            s->n_on = 0;
            s->reach = FIRST_REACH;
            s->rate_tokens = s->tokens / s->n_done;
            s->rate_cost = s->cost / s->n_done;
        } else {
            turn_off(control, true);
        }
    } else if (utility < 1) {
        turn_off(control, true);
    } else {
        s->wait = FIRST_WAIT;
    }
    part_reset(s);
}

/* What plain decoding of the iteration's tokens would have cost, in t_base. */
static double plain_value(const survival_state *s, const moe_length_iteration *it, double unit)
{
    return it->models_misses ? (it->n_emitted * s->compute_base + it->plain_fetch) / unit
                             : (double)it->n_emitted / it->n_sequences;
}

/* What earlier drafts made this pass miss beyond its own needs (less than 0: spared it). */
static double aftermath(const moe_length_iteration *it, double unit)
{
    return it->models_misses ? (it->modelled_fetch - it->plain_fetch) / unit : 0;
}

/* In t_base. Noise is clipped, known misses are not. */
static double clipped_verify(const survival_state *s, const moe_length_iteration *it, double unit)
{
    uint32_t extra = it->n_rows > it->n_sequences ? it->n_rows - it->n_sequences : 0;
    double fetch = it->models_misses ? it->modelled_fetch / unit : -1;
    double expected = verify_ratio(s, (extra + it->n_sequences - 1) / it->n_sequences, fetch);
    double verify = it->verify_cost / unit;
    return verify > COST_CLIP * expected ? COST_CLIP * expected : verify;
}

/* An iteration: its account, in t_base, and the end of a probe or window. */
static void account(moe_length_control *control, const moe_length_iteration *it, bool plain)
{
    survival_state *s = control->state;
    double unit = control->base->cost * it->n_sequences;
    if (unit <= 0) {
        moe_length_account_add(&s->account, it->verify_cost, it->verify_cost, 0);
        return;
    }
    /* A plain iteration has lost what drafting and its aftermath cost, whatever the noise. */
    double value = plain ? it->verify_cost / unit - aftermath(it, unit) : plain_value(s, it, unit);
    double cost = plain ? it->verify_cost / unit : clipped_verify(s, it, unit);
    cost += it->draft_cost / unit;
    moe_length_account_add(&s->account, value * unit, cost * unit, unit);
    if (control->draft_length == 0) {
        return;
    }
    s->tokens += value;
    s->cost += cost;
    s->rate_tokens += (value - s->rate_tokens) / RATE_MEMORY;
    s->rate_cost += (cost - s->rate_cost) / RATE_MEMORY;
    s->n_on += s->mode == MODE_ON;
    if (s->mode == MODE_ON && it->n_emitted > it->n_sequences * s->reach) {
        s->reach *= 2; /* all of it stood */
    }
    if (moe_length_account_left(&s->account, s->promising, unit) <= 0) {
        part_reset(s);
        turn_off(control, true);
        return;
    }
    /* Where the drafter had nothing to say, a probe has learnt nothing. */
    s->n_done += !plain;
    if (s->n_done >= (s->mode == MODE_PROBE ? PROBE_ITERATIONS : WINDOW)) {
        part_end(control);
    }
}

static void survival_end(moe_length_control *control, const moe_length_iteration *it)
{
    survival_state *s = control->state;
    bool plain = moe_length_is_plain(it);
    /* Priced before it is learnt from: an outlier must not raise what it is clipped at. */
    account(control, it, plain);
    learn_costs(control, it, plain);
    s->waited += s->mode == MODE_OFF;
}

static int survival_create(moe_length_control *control, moe_error *err)
{
    survival_state *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "length control: no memory for its state");
    }
    control->state = s;
    s->account.share = control->options.second ? SECOND_SHARE : SHARE;
    s->account.more = MORE;
    s->slope = ROW_COST_PRIOR;
    s->wait = FIRST_WAIT;
    s->waited = FIRST_WAIT; /* the first probe follows the first baseline */
    return MOE_OK;
}

const moe_length_ops moe_length_survival_ops = {.create = survival_create,
                                                .begin = survival_begin,
                                                .survival = survival_of,
                                                .go_on = survival_go_on,
                                                .cut = survival_cut,
                                                .note_token = survival_note,
                                                .listens = survival_listens,
                                                .end = survival_end};
