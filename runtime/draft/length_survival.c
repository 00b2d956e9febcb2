/* SPDX-License-Identifier: MIT */
/* Drafts when a gain is expected and a budget covers the possible loss: a conservative bandit over
 * {off, chains of 1, 2, ... tokens} (Wu, Shariff, Lattimore and Szepesvari, Conservative Bandits,
 * 2016).
 *
 * Arms. A chain of K tokens writes 1 + a_1 + a_1 a_2 + ... tokens, where a_d is the acceptance at
 * depth d (length_odds.h). It costs 1 + h(K) + K * pass, where a plain pass costs 1. Its gain is
 * tokens / cost; "off" has gain 1. A verified chain also shows the gains of all shorter chains, and
 * silent drafts show them while nothing is verified. So no arm is played only to learn about it:
 * the arm with the greatest expected gain is played if that gain is at least PAYS. In a batch, the
 * first guess of a self draft's acceptance is the share of experts chosen by plain rows that are in
 * memory.
 *
 * Budget. A chain is drafted only while
 *     lost so far + what it would lose  <=  SHARE * cost of plain decoding so far
 * "What it would lose" assumes that the chain's acceptance is one deviation below the expected one;
 * the deviation counts both chance and how few such chains were seen. In a batch, the budget is at
 * least LENT of a plain pass from the beginning. So drafts lose, against plain decoding as
 * accounted here, at most SHARE of its cost or LENT of a pass, plus what the last draft lost beyond
 * that deviation. Gains pay for later losses, up to MOST.
 *
 * Costs. h(x) is what x more rows of every sequence add to a pass: c * x^POWER in a batch, whose
 * rows share experts, otherwise c * x. The first estimate of c comes from plain passes: the share
 * of their misses that the pass before had neither used nor evicted (miss_model.h). Verifications
 * then correct c. The cost of a pass is compared with that of plain decoding of the very same
 * tokens, because misses come in bursts and are fewest where drafts are good. The computing time of
 * a plain pass is the median of the latest ones measured; every REFRESH iterations with drafts, one
 * plain pass is made to measure it. */
#include <math.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/length_controller.h"
#include "runtime/draft/length_odds.h"

/* Constants of the budget for losses. */
#define SHARE 0.006
/* plain passes: what a batch of LENT_TO sequences or more may lose at first */
#define LENT    0.25
#define LENT_TO 8.0
/* a first draft may cost this many times the remaining budget if none of it is accepted */
#define WRONG     3.0
#define MOST      4.0 /* plain passes */
#define PAYS      1.02
#define HOPED_FOR 0.75 /* assumed acceptance of drafts that must be tried before it is known */

#define SAMPLES 12u /* plain passes */
#define FIRST   8u  /* plain tokens of sequences before costs count as known */
#define REFRESH 32u
/* used instead of REFRESH if the gain is below CLOSE: an old base could hide a loss */
#define REFRESH_CLOSE 12u
#define CLOSE         1.15
#define MEMORY        16.0 /* iterations that a running mean remembers */
#define POWER         0.6  /* measured: bench/results/draft-length.md, section "In batches" */
/* c's first value, as a share of a plain pass's misses, before two passes were compared */
#define FIRST_FRESH 0.5
/* the most that one more row of every sequence computes, as a share of a plain pass */
#define ROW_COMPUTE 0.35
/* single sequence: misses of a rejected row, in those of a plain token */
#define REJECTED 2.0
/* a cost counts as at most this many times the expected one: the machine may have stalled */
#define CLIP         3.0
#define HEARD        8.0 /* a guess of the acceptance counts as this many tokens */
#define KNOWN        4.0 /* tokens that must have been seen if the acceptance cannot be guessed */
#define LISTEN_SHARE 0.5 /* the share of the budget that passes of silent drafts may use */

typedef struct mean {
    double value;
    uint32_t n;
} mean;

typedef struct survival_state {
    moe_length_odds odds;
    double plain[SAMPLES]; /* ring: computing cost of a sequence in the latest plain passes */
    uint32_t n_plain;
    double compute, fetch; /* of a plain token of one sequence */
    mean fresh, resident, pass;
    double extra, expected; /* fading sums: the cost that verified rows added, and the cost that h()
                             * predicted */
    double row;             /* from earlier runs: what a row of a single sequence adds; 0: not
                             * known */
    double tokens, cost;    /* running means of iterations with drafts, in plain passes */
    double promise;
    uint32_t longest;                 /* the longest chain that was verified */
    moe_length_account own, *account; /* own, or one that is shared */
    bool refreshing;
} survival_state;

static bool is_batch(const moe_length_control *c)
{
    return c->n_sequences >= MOE_LENGTH_BATCH;
}

/* Whether drafting takes no pass of a model. */
static bool is_free(const moe_length_control *c)
{
    return c->options.draft_pass <= 0;
}

static void mean_add(mean *m, double value)
{
    m->n += m->n < MEMORY;
    m->value += (value - m->value) / m->n;
}

/* ---- Costs, in plain passes ---- */

/* Returns which share of a plain pass's cost is waiting for missing experts. */
static double fetch_share(const moe_length_control *c)
{
    const survival_state *s = c->state;
    return c->base->cost > 0 ? s->fetch / c->base->cost : 0;
}

/* Returns the estimated cost of one more row of every sequence, used until such rows were
 * verified. */
static double first_row(const moe_length_control *c)
{
    const survival_state *s = c->state;
    double fetch = fetch_share(c);
    double fresh = !is_batch(c) ? 1 : s->fresh.n > 0 ? s->fresh.value : FIRST_FRESH;
    return s->row > 0 && !is_batch(c) ? s->row : fresh * fetch + ROW_COMPUTE * (1 - fetch);
}

static double shape(const moe_length_control *c, double rows)
{
    return first_row(c) * (is_batch(c) ? pow(rows, POWER) : rows);
}

/* Returns the cost of `rows` more rows of every sequence. */
static double added(const moe_length_control *c, double rows)
{
    const survival_state *s = c->state;
    double prior = 2 * shape(c, 1);
    return shape(c, rows) * (s->extra + prior) / (s->expected + prior);
}

/* Returns the cost of these rows if their tokens are rejected. With a single sequence they then
 * belong to another text, and miss more experts than a plain token does. */
static double at_risk(const moe_length_control *c, double rows)
{
    double usual = added(c, rows), fetch = fetch_share(c);
    double other = rows * (ROW_COMPUTE * (1 - fetch) + REJECTED * fetch);
    return is_batch(c) || usual > other ? usual : other;
}

static double pass_cost(const moe_length_control *c)
{
    const survival_state *s = c->state;
    double compute = c->base->cost > 0 ? s->compute / c->base->cost : 1;
    double used =
        s->resident.n > 0 ? s->resident.value : 1; /* of the experts, if it is restricted */
    return s->pass.n > 0 ? s->pass.value : c->options.draft_pass * compute * used;
}

/* The cost of a draft pass when deciding whether to try one. With a single sequence it is 0 until
 * measured, because one pass may show that it costs almost nothing. */
static double hoped_pass(const moe_length_control *c)
{
    const survival_state *s = c->state;
    return s->pass.n > 0 || is_batch(c) ? pass_cost(c) : 0;
}

/* ---- Acceptance ---- */

static double first_odds(const moe_length_control *c)
{
    const survival_state *s = c->state;
    bool guesses = is_batch(c) && s->resident.n > 0;
    return guesses ? s->resident.value : is_batch(c) || is_free(c) ? 0.5 : HOPED_FOR;
}

/* Whether anything is known yet about drafts that take passes. */
static bool is_known(const moe_length_control *c)
{
    const survival_state *s = c->state;
    return s->resident.n > 0 || moe_length_odds_seen(&s->odds, 1) >= KNOWN;
}

static double odds_at(const moe_length_control *c, uint32_t depth)
{
    const survival_state *s = c->state;
    return moe_length_odds_at(&s->odds, depth, first_odds(c));
}

/* How many tokens of a chain are expected to be accepted, and how much that varies. */
typedef struct luck {
    double path, tokens, squares;
} luck;

/* Adds a token at this depth. Returns how many tokens are accepted if luck is bad: the expected
 * number minus one deviation. The deviation is larger if there are few chains, and if few such
 * tokens were counted. */
static double luck_add(const moe_length_control *c, luck *l, double p, uint32_t depth,
                       uint32_t n_chains)
{
    const survival_state *s = c->state;
    l->path *= p;
    l->tokens += l->path;
    l->squares += (2 * depth - 1) * l->path;
    double variance = l->squares - l->tokens * l->tokens;
    double known = HEARD + moe_length_odds_seen(&s->odds, depth);
    return l->tokens - sqrt((variance > 0 ? variance : 0) * (1.0 / n_chains + 1 / known));
}

static double survival_of(const moe_length_control *c, uint32_t depth, float confidence)
{
    const survival_state *s = c->state;
    /* A sampled token of the model's own draft: its confidence says little about its acceptance. */
    bool guesses = !is_free(c) && is_batch(c);
    double prior = guesses ? odds_at(c, depth) : 0.05 + 0.85 * (double)confidence;
    return moe_length_odds_of(&s->odds, depth, confidence, prior);
}

static void survival_note(moe_length_control *c, uint32_t depth, float confidence, bool accepted)
{
    survival_state *s = c->state;
    moe_length_odds_note(&s->odds, depth, confidence, accepted);
}

/* ---- What a draft may lose, and what it may win ---- */

/* Returns what is left of the budget, in the cost of plain passes of all sequences. */
static double left(const moe_length_control *c)
{
    const survival_state *s = c->state;
    double part = c->n_sequences / LENT_TO;
    double unit = c->base->cost * c->n_sequences;
    double lent = is_batch(c) && !is_free(c) ? LENT * unit * (part < 1 ? part : 1) : 0;
    double granted = SHARE * s->account->plain;
    return ((granted > lent ? granted : lent) - s->account->lost) / unit;
}

static void book(survival_state *s, double plain, double cost, double unit)
{
    moe_length_account *a = s->account;
    a->plain += plain;
    a->lost += cost - plain;
    a->lost = a->lost < -MOST * unit ? -MOST * unit : a->lost;
}

/* Returns how many tokens recent iterations wrote for the cost of a plain pass, but at least 1.
 * This is what the time of a draft could have won otherwise. */
static double rate(const moe_length_control *c)
{
    const survival_state *s = c->state;
    return s->cost > 0 && s->tokens > s->cost ? s->tokens / s->cost : 1;
}

/* Returns the length of the chain with the greatest gain, and sets *gain. */
static uint32_t best_chain(const moe_length_control *c, double *gain)
{
    uint32_t best = 0;
    double path = 1, tokens = 1;
    *gain = 1;
    for (uint32_t k = 1; k <= c->options.max_draft; k++) {
        path *= odds_at(c, k);
        tokens += path;
        double now = tokens / (1 + added(c, k) + k * hoped_pass(c));
        best = now > *gain ? k : best;
        *gain = now > *gain ? now : *gain;
    }
    return best;
}

/* Returns the longest chain that may be tried: at first one token, later twice as many as the
 * longest chain that was verified. */
static uint32_t reach(const moe_length_control *c)
{
    const survival_state *s = c->state;
    uint32_t most = s->longest > 0 ? 2 * s->longest : 1;
    return most < c->options.max_draft ? most : c->options.max_draft;
}

/* Returns the longest chain, of at most `most` tokens, whose possible loss the budget covers. */
static uint32_t affordable(const moe_length_control *c, uint32_t most)
{
    const survival_state *s = c->state;
    luck bad = {.path = 1};
    double room = left(c);
    uint32_t length = 0;
    for (uint32_t k = 1; k <= most && k <= reach(c); k++) {
        double tokens = luck_add(c, &bad, odds_at(c, k), k, c->n_sequences);
        double cost = at_risk(c, k) + k * pass_cost(c);
        bool guessed = moe_length_odds_seen(&s->odds, 1) <= 0;
        bool may = cost - tokens <= room && (!guessed || cost <= WRONG * room);
        length = may ? k : length;
    }
    return length;
}

static uint32_t survival_begin(moe_length_control *c)
{
    survival_state *s = c->state;
    s->promise = 0;
    s->refreshing =
        c->base->cost > 0 && c->base->age >= (rate(c) < CLOSE ? REFRESH_CLOSE : REFRESH);
    if (c->base->cost <= 0 || s->refreshing || left(c) <= 0) {
        return 0;
    }
    if (is_free(c) && is_batch(c)) {
        return reach(c); /* the text's drafts are priced one by one */
    }
    if ((is_free(c) || is_batch(c)) && !is_known(c)) {
        return 0; /* silent drafts come first */
    }
    double gain;
    uint32_t best = best_chain(c, &gain);
    s->promise = is_free(c) ? 0 : gain;
    return gain < PAYS ? 0 : is_free(c) ? reach(c) : affordable(c, best);
}

/* Whether one more token is worth its row and its pass, either alone or together with some number
 * of tokens after it. */
static bool survival_continues(const moe_length_control *c, uint32_t depth, double path,
                               uint32_t n_sharing)
{
    double tokens = 0, before = added(c, depth);
    double pass = hoped_pass(c) * (n_sharing > 0 ? (double)c->n_sequences / n_sharing : 1);
    for (uint32_t k = depth + 1; k <= c->draft_length; k++) {
        path *= odds_at(c, k);
        tokens += path;
        if (tokens > rate(c) * (added(c, k) - before + (k - depth) * pass)) {
            return true;
        }
    }
    return false;
}

static bool survival_keeps(const moe_length_control *c, double path)
{
    return path > rate(c) * added(c, 1);
}

/* Returns how many tokens of a drafted chain have the greatest value together; 0 if the budget
 * does not cover their possible loss. */
static uint32_t survival_cut(const moe_length_control *c, const double *survival,
                             const double *fetch_cost, uint32_t n, uint32_t n_sharing)
{
    uint32_t m = n_sharing > 0 ? n_sharing : c->n_sequences, best = 0;
    double part = (double)m / c->n_sequences, unit = c->base->cost * c->n_sequences;
    double tokens = 0, greatest = 0, room = left(c);
    luck bad = {.path = 1};
    n = n < c->draft_length ? n : c->draft_length;
    for (uint32_t k = 1; k <= n; k++) {
        tokens += survival[k - 1];
        double before = k > 1 ? survival[k - 2] : 1;
        double low = luck_add(c, &bad, before > 0 ? survival[k - 1] / before : 0, k, m);
        double cost = added(c, k * part) / part;
        if (fetch_cost != NULL && unit > 0) { /* the draft's misses were foreseen */
            cost = ROW_COMPUTE * k + (fetch_cost[k] - fetch_cost[0]) / unit;
        }
        double value = tokens - rate(c) * cost;
        bool may = !is_free(c) || at_risk(c, k * part) - part * low <= room;
        if (may && value > greatest) {
            greatest = value;
            best = k;
        }
    }
    return best;
}

/* ---- Drafts that are not verified ---- */

static uint32_t survival_listen(moe_length_control *c)
{
    const survival_state *s = c->state;
    bool may = is_batch(c) && c->base->cost > 0 && !s->refreshing && !is_known(c);
    return may && pass_cost(c) <= LISTEN_SHARE * left(c) ? 1 : 0;
}

static bool survival_rests(const moe_length_control *c)
{
    return c->draft_length == 0;
}

static bool survival_wants_plain(const moe_length_control *c)
{
    const survival_state *s = c->state;
    return s->refreshing;
}

static double survival_promise(const moe_length_control *c)
{
    const survival_state *s = c->state;
    return s->promise;
}

static void survival_note_drafts(moe_length_control *c, double n_tokens, uint32_t n_rows)
{
    survival_state *s = c->state;
    double n = c->n_sequences;
    s->promise = n_rows > 0 ? (1 + n_tokens / n) / (1 + added(c, n_rows / n)) : 0;
}

static bool survival_get_habit(const moe_length_control *c, moe_draft_habit *habit)
{
    const survival_state *s = c->state;
    if (s->expected > 0 && !is_batch(c)) {
        habit->costs[c->options.tier] =
            (moe_draft_costs){.n = 1, .row = (float)added(c, 1), .pass = (float)s->pass.value};
    }
    return moe_length_odds_keep(&s->odds, habit);
}

/* ---- Learning from an iteration ---- */

static double median(const double *values, uint32_t n)
{
    double sorted[SAMPLES];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = values[i];
    }
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

static void learn_plain(moe_length_control *c, const moe_length_iteration *it)
{
    survival_state *s = c->state;
    uint32_t first = FIRST / it->n_sequences;
    double fetch = it->models_misses ? it->fetch_cost : 0;
    s->plain[s->n_plain++ % SAMPLES] = (it->verify_cost - fetch) / it->n_sequences;
    if (s->n_plain >= first) {
        s->compute = median(s->plain, s->n_plain < SAMPLES ? s->n_plain : SAMPLES);
    }
    c->base->age = 0;
}

static void learn_rows(moe_length_control *c, const moe_length_iteration *it, double unit)
{
    survival_state *s = c->state;
    double rows = (double)(it->n_rows - it->n_sequences) / it->n_sequences;
    double expected = shape(c, rows), most = CLIP * (1 + added(c, rows));
    double cost = it->verify_cost / unit;
    s->extra += (cost < most ? cost : most) - 1 - s->extra / MEMORY;
    s->extra = s->extra > 0 ? s->extra : 0;
    s->expected += expected - s->expected / MEMORY;
}

static void survival_end(moe_length_control *c, const moe_length_iteration *it)
{
    survival_state *s = c->state;
    double n = it->n_sequences, tokens = it->n_emitted > 0 ? it->n_emitted : 1;
    bool plain = moe_length_is_plain(it), may_begin = c->base->cost <= 0;
    if (it->models_misses) {
        double weight = s->fetch <= 0 ? 1 : tokens / n / 64;
        s->fetch += (weight < 1 ? weight : 1) * (it->plain_fetch / tokens - s->fetch);
    }
    if (plain) {
        learn_plain(c, it);
    }
    c->base->cost = s->compute > 0 ? s->compute + s->fetch : 0;
    if (it->fresh >= 0) {
        mean_add(&s->fresh, it->fresh);
    }
    if (it->resident_share >= 0) {
        mean_add(&s->resident, it->resident_share);
    }
    /* What plain decoding would have cost: for these tokens, and for one token of each sequence. */
    double value = s->compute * tokens + (it->models_misses ? it->plain_fetch : s->fetch * tokens);
    double unit = value * n / tokens, cost = it->verify_cost + it->draft_cost;
    if (plain) { /* the misses that earlier drafts caused by evictions */
        value = cost - (it->models_misses ? it->modelled_fetch - it->plain_fetch : 0);
    }
    if (!it->is_booked) {
        book(s, value, cost, c->base->cost * n);
    }
    if (may_begin || unit <= 0) {
        return;
    }
    if (it->n_draft_passes > 0) {
        mean_add(&s->pass, it->draft_cost / it->n_draft_passes / unit);
    }
    if (it->n_rows > it->n_sequences) {
        uint32_t length = (it->n_rows - 1) / it->n_sequences; /* the least that one of them had */
        s->longest = length > s->longest ? length : s->longest > 0 ? s->longest : 1;
        learn_rows(c, it, unit);
        s->tokens += (value / unit - s->tokens) / MEMORY;
        s->cost += (cost / unit - s->cost) / MEMORY;
    } else if (c->draft_length == 0 && !is_free(c)) {
        moe_length_odds_fade(&s->odds);
    }
}

static int survival_create(moe_length_control *c, moe_error *err)
{
    survival_state *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "length control: no memory for its state");
    }
    c->state = s;
    s->account = c->options.account != NULL ? c->options.account : &s->own;
    const moe_draft_habit *habit = c->options.habit;
    if (habit != NULL) {
        const moe_draft_costs *costs = &habit->costs[c->options.tier];
        moe_length_odds_carry(&s->odds, habit);
        s->row = costs->n > 0 ? (double)(costs->row + costs->row_fetch) : 0;
        s->pass = (mean){(double)costs->pass, costs->n > 0 && costs->pass > 0};
    }
    return MOE_OK;
}

const moe_length_ops moe_length_survival_ops = {.create = survival_create,
                                                .begin = survival_begin,
                                                .survival = survival_of,
                                                .continues = survival_continues,
                                                .promise = survival_promise,
                                                .note_drafts = survival_note_drafts,
                                                .keeps = survival_keeps,
                                                .cut = survival_cut,
                                                .note_token = survival_note,
                                                .hears_silent_drafts = true,
                                                .listen = survival_listen,
                                                .get_habit = survival_get_habit,
                                                .rests = survival_rests,
                                                .wants_plain = survival_wants_plain,
                                                .end = survival_end,
                                                .keeps_base = true};
