/* SPDX-License-Identifier: MIT */
/* Prices a token before it is drafted or verified, under a guard with a budget of lost time.
 *
 * Prices. A token is worth its row when
 *    P(path is accepted)  >  rate * (cost of one row more, with its misses),
 * where rate is the greater of plain decoding's tokens per cost and of what speculation has reached
 * lately: the stationary optimum of tokens per cost. length_prices.h estimates both sides.
 *
 * Guard. An account (length_account.h) says how much may be lost: a share of what plain decoding of
 * the tokens so far would have cost. A draft is no longer than the account could pay for if every
 * row that is not nearly sure were rejected. Drafts begin short: K doubles when a whole draft was
 * accepted.
 *
 * Silent drafts. While K is 0, a drafter that costs nothing (n-grams) still drafts, and its drafts
 * are compared with what is written. Acceptance is thus known before anything was paid for: a text
 * that promises little is not tried, one that promises much is tried at once and with a larger
 * share. Among several sequences the model's own drafts are listened to as well: the passes cost
 * little beside the misses of all sequences.
 *
 * Batches. Where other sequences' rows ask for the same experts a rejected row costs little, and
 * the row after it less (length_prices.h). So a depth is priced as a whole, and what may be lost is
 * counted with the acceptance that was heard, at its lower end: many sequences are never refused
 * together. A probe's drafts are short there, too, and K grows by one a pass. How many tokens of a
 * self draft will stand is guessed from the share of chosen experts that are in memory; where that
 * promises a gain, one token is verified at once, without listening first. What was heard fades
 * while nothing is drafted.
 *
 * Gains and losses. If misses are modelled, they are counted against what plain decoding would have
 * missed for the very same tokens (miss_model.h). Misses come in bursts and are fewer where drafts
 * are good, so with a t_base measured at another time easy text would look like a gain; also, plain
 * passes pay for experts that rejected drafts have evicted.
 *
 *            plain iterations         wait over or much promised, enough left
 *  WARM_UP -------------------> OFF --------------------------> PROBE
 *                                ^  <-- probe_end(): U < 1 ------ |
 *                                |                                | probe_end(): U >= 1, or the
 *                                |  window's U < 1, nothing left  v prices say that it pays
 *                                +------------------------------ ON
 *
 * The wait doubles with each failure, which keeps hopeless text far below what may be lost. All
 * plain iterations measure t_base. While ON, one iteration in REFRESH_INTERVAL is made plain for
 * this, or one in REFRESH_CLOSE if little is won. */
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/length_account.h"
#include "runtime/draft/length_controller.h"
#include "runtime/draft/length_prices.h"

#define COST_CLIP 3.0 /* times the expected cost */

#define ROW_MISSES   1.5 /* of a rejected row, over a plain token's: it belongs to another text */
#define EXPLORE_LEFT 3.0 /* in t_base */

#define PROBE_ITERATIONS 6u
#define LEAST_PROBE      2u
#define FIRST_WAIT       16u
#define MAX_WAIT         2048u
#define FIRST_REACH      2u
#define WINDOW           32u
#define REFRESH_INTERVAL 32u
#define REFRESH_CLOSE    12u /* ... where little is won, and an old t_base could hide a loss */
#define CLOSE            1.15
#define RATE_MEMORY      64.0
#define LATE_MEMORY      8.0 /* iterations: what drafting wins now, of a batch */
#define FIRST_BREADTH    0.4
#define YOUNG            8u /* iterations ON before what was measured alone counts */
#define EXPLORE_INTERVAL 16u
#define PAYS             1.03 /* predicted utility that turns speculation on after a probe */
#define PROMISING        1.3  /* ... and that allows a probe without waiting */
#define HEARD            8u   /* tokens of silent drafts needed before they count */
#define SURE_TOKENS      3.0  /* length of drafts that promises much, whatever rows cost */
#define SURE_DEPTH       4u   /* the cost of longer drafts is not known before one was verified */
#define LISTEN_TOKENS    12u  /* heard before a decision */
#define LISTEN_DEPTH     2u
#define LISTENS_FROM     0.9  /* predicted utility */
#define DEAR_PASS        0.25 /* in t_base of all sequences: such drafts gain too little */
#define LISTEN_SHARE     0.7  /* of what may be lost: the rest is for the first rows */
#define ADVANCE                                                                                    \
    0.15                      /* in t_base of all sequences: what many may lose before that much   \
                               * was granted */
#define ADVANCE_SEQUENCES 8.0 /* ... from so many on */

typedef enum survival_mode { MODE_OFF, MODE_PROBE, MODE_ON } survival_mode;

typedef struct survival_state {
    moe_length_prices prices;
    double rate_tokens, rate_cost; /* running means while ON, of an iteration */
    double late_tokens, late_cost; /* likewise, over fewer of them */
    double breadth;                /* rows that drafts add, for each sequence, 0 to 1; of a batch */
    survival_mode mode;
    moe_length_account own;
    moe_length_account *account; /* `own`, or one that is shared */
    uint32_t n_heard;            /* tokens of silent drafts, up to HEARD */
    uint32_t n_listened;         /* ... whose draft took passes, since the last decision */
    bool listens;                /* its drafts take passes, and are listened to */
    bool promising;
    uint32_t wait, waited; /* plain iterations before a probe */
    uint32_t probe_depth, n_probes;
    /* ON: K's ceiling, which grows as whole drafts are accepted; in a batch with every pass that
     * has won. */
    uint32_t reach;
    /* The probe, or the window while ON. */
    uint32_t n_done;
    double tokens, cost;
    uint32_t n_on; /* iterations since speculation went ON */
    bool refreshing, exploring;
} survival_state;

static double survival_of(const moe_length_control *control, uint32_t depth, float confidence)
{
    const survival_state *s = control->state;
    return moe_length_prices_survival(&s->prices, depth, confidence);
}

static void survival_note(moe_length_control *control, uint32_t depth, float confidence,
                          bool accepted)
{
    survival_state *s = control->state;
    moe_length_prices_note(&s->prices, depth, confidence, accepted);
    s->n_heard += control->draft_length == 0 && s->n_heard < HEARD;
    s->n_listened += control->draft_length == 0 && s->listens;
}

static bool survival_wants_silent_drafts(const moe_length_control *control)
{
    return control->draft_length == 0;
}

static bool survival_rests(const moe_length_control *control)
{
    const survival_state *s = control->state;
    return s->mode == MODE_OFF;
}

static bool survival_wants_plain(const moe_length_control *control)
{
    const survival_state *s = control->state;
    return s->refreshing;
}

static bool survival_get_habit(const moe_length_control *control, moe_draft_habit *habit)
{
    const survival_state *s = control->state;
    return moe_length_prices_get_habit(&s->prices, control->options.tier, habit);
}

static double rate_in_use(const survival_state *s)
{
    bool faster = s->mode == MODE_ON && s->rate_tokens > s->rate_cost && s->rate_cost > 0;
    return faster ? s->rate_tokens / s->rate_cost : 1;
}

static double predicted_utility(const moe_length_control *control)
{
    const survival_state *s = control->state;
    return moe_length_prices_utility(&s->prices, control->options.max_draft);
}

static double survival_promise(const moe_length_control *control)
{
    const survival_state *s = control->state;
    if (s->mode == MODE_ON && s->rate_cost > 0) {
        bool many = control->n_sequences >= MOE_LENGTH_BATCH;
        double rate = many ? s->late_tokens / s->late_cost : s->rate_tokens / s->rate_cost;
        /* A probe's drafts are short; of all sequences' drafts the prices promise what is more. */
        bool young = s->listens && s->n_on < YOUNG && many;
        double predicted = young ? predicted_utility(control) : 0;
        return predicted > rate ? predicted : rate;
    }
    bool is_known = s->n_heard >= HEARD || moe_length_prices_guesses(&s->prices);
    bool has_base = control->base != NULL && control->base->cost > 0;
    double promise = is_known && has_base ? predicted_utility(control) : 0;
    bool some = !s->listens && control->n_sequences >= MOE_LENGTH_BATCH && promise > 1;
    return some ? 1 + s->breadth * (promise - 1) : promise;
}

static bool survival_continues(const moe_length_control *control, uint32_t depth,
                               double path_survival, uint32_t n_sharing)
{
    const survival_state *s = control->state;
    if (s->mode == MODE_PROBE || (s->exploring && depth < 2)) {
        return true; /* up to K */
    }
    double path = (s->exploring ? 1.5 : 1) * path_survival;
    return moe_length_prices_pays_on(&s->prices, depth, path, rate_in_use(s),
                                     control->options.max_draft - depth, n_sharing);
}

/* Rows of a tree are priced alike: the line through the widths seen has a row's experts in it. A
 * batch that tries drafts verifies no branches: all sequences' together cost as much as a pass. */
static bool survival_keeps(const moe_length_control *control, double path_survival)
{
    const survival_state *s = control->state;
    double row =
        moe_length_prices_verify(&s->prices, 1, -1) - moe_length_prices_verify(&s->prices, 0, -1);
    bool tries = s->mode == MODE_PROBE || s->exploring;
    bool few = control->n_sequences < MOE_LENGTH_BATCH;
    return (tries && few) || path_survival > rate_in_use(s) * row;
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

/* What may be lost now, in t_base of all sequences. */
static double may_lose(const moe_length_control *control)
{
    const survival_state *s = control->state;
    double unit = control->base->cost * control->n_sequences;
    double part = control->n_sequences / ADVANCE_SEQUENCES;
    double advance =
        control->n_sequences < MOE_LENGTH_BATCH ? 0 : ADVANCE * (part < 1 ? part * part : 1);
    advance -= moe_length_account_granted(s->account) / unit; /* by what was lent */
    advance = advance > 0 ? advance : 0;
    return moe_length_account_left(s->account, s->promising, unit) / unit + advance;
}

/* The longest draft, up to this length, whose loss the account covers: of all its rows, or, if
 * silent drafts have told their acceptance, without those that are nearly sure. */
static uint32_t affordable(const moe_length_control *control, uint32_t length, uint32_t n_drafting)
{
    const survival_state *s = control->state;
    double base = control->base->cost, left = may_lose(control);
    if (control->n_sequences >= MOE_LENGTH_BATCH && left <= 0) {
        return 0;
    }
    if (control->n_sequences >= MOE_LENGTH_BATCH) {
        return moe_length_prices_affordable(&s->prices, length, left, s->n_heard >= HEARD,
                                            n_drafting);
    }
    double pass = moe_length_prices_draft(&s->prices);
    /* A rejected row asks for another text's experts; the first may have cost even more lately. */
    double rejected = s->prices.slope + pass + ROW_MISSES * s->prices.plain_fetch / base;
    double row = moe_length_prices_verify(&s->prices, 1, -1) -
                 moe_length_prices_verify(&s->prices, 0, -1) + pass;
    row = row > rejected ? row : rejected;
    double path = 1, loss = 0;
    for (uint32_t n = 0; n < length; n++) {
        path *= moe_length_prices_at_depth(&s->prices, n + 1);
        /* A calibration from few tokens is trusted only where it is nearly sure. */
        double stands = s->n_heard >= HEARD ? path * path * path * path : 0;
        loss += row * (1 - stands);
        if (loss > left) {
            return n;
        }
        row = rejected;
    }
    return length;
}

/* Cuts what is already drafted: the length with the greatest tokens - rate * cost, ties to the
 * shorter. */
static uint32_t survival_cut(const moe_length_control *control, const double *survival,
                             const double *fetch_cost, uint32_t n, uint32_t n_sharing)
{
    const survival_state *s = control->state;
    n = n < control->draft_length ? n : control->draft_length;
    bool few = n_sharing > 0 && control->n_sequences >= MOE_LENGTH_BATCH;
    n = few && n > 0 ? affordable(control, n, n_sharing) : n;
    if (s->mode == MODE_PROBE || n == 0) {
        return n;
    }
    double base = control->base->cost, rate = rate_in_use(s);
    double tokens = 0, best = 0;
    uint32_t best_length = 0;
    for (uint32_t i = 0; i <= n; i++) {
        double unit = base * control->n_sequences;
        double fetch = fetch_cost != NULL && unit > 0 ? fetch_cost[i] / unit : -1;
        double cost = moe_length_prices_verify(&s->prices, i, fetch);
        if (few) { /* what each of these few pays for what they add */
            double each = (double)control->n_sequences / n_sharing;
            cost = each * moe_length_prices_added(&s->prices, i, n_sharing);
        }
        double value = tokens - rate * cost;
        if (i == 0 || value > best) {
            best = value;
            best_length = i;
        }
        tokens += i < n ? survival[i] : 0;
    }
    uint32_t explore = best_length + 2 < n ? best_length + 2 : n;
    return s->exploring ? explore : best_length;
}

static bool is_priced(const moe_length_control *control)
{
    const moe_length_base *base = control->base;
    uint32_t least = moe_length_prices_first_samples(control->n_sequences);
    return base->n_samples >= least && base->cost > 0;
}

static uint32_t survival_listen(moe_length_control *control)
{
    survival_state *s = control->state;
    bool many = control->n_sequences >= MOE_LENGTH_BATCH;
    if (!many || s->mode != MODE_OFF || s->waited < s->wait || !is_priced(control)) {
        return 0;
    }
    s->listens = true;
    double pass = moe_length_prices_draft(&s->prices);
    uint32_t most = s->prices.draft_pass.n > 0 ? LISTEN_DEPTH : 1;
    most = control->options.max_draft < most ? control->options.max_draft : most;
    bool hopeless =
        moe_length_prices_guesses(&s->prices) && predicted_utility(control) < LISTENS_FROM;
    double room = LISTEN_SHARE * may_lose(control);
    most = most * pass <= room ? most : 1;
    return !hopeless && pass <= DEAR_PASS && most * pass <= room ? most : 0;
}

static bool should_probe(const moe_length_control *control, double promise)
{
    const survival_state *s = control->state;
    bool waited = s->waited >= s->wait && (s->n_heard < HEARD || promise >= 1);
    if (moe_length_prices_guesses(&s->prices)) {
        bool cheap = moe_length_prices_draft(&s->prices) <= DEAR_PASS;
        return cheap && s->waited >= s->wait && promise >= PAYS &&
               affordable(control, 1, control->n_sequences) > 0;
    }
    if (s->listens && (s->n_heard < HEARD || promise < PAYS)) {
        return false;
    }
    return (waited || s->promising) && affordable(control, 1, control->n_sequences) > 0;
}

static uint32_t survival_begin(moe_length_control *control)
{
    static const uint32_t depths[] = {1, 2};
    survival_state *s = control->state;
    const moe_length_base *base = control->base;
    s->refreshing = s->exploring = false;
    if (control->n_sequences_changed) {
        s->prices.n_plain = 0;
    }
    if (!is_priced(control)) {
        return 0;
    }
    double promise = predicted_utility(control);
    bool is_sure =
        s->n_heard >= HEARD && moe_length_prices_tokens(&s->prices, SURE_DEPTH) >= SURE_TOKENS;
    s->promising = is_sure || (s->n_heard >= HEARD && promise >= PROMISING);
    if (s->mode == MODE_OFF && should_probe(control, promise)) {
        s->mode = MODE_PROBE;
        uint32_t depth = depths[s->n_probes++ % (sizeof depths / sizeof *depths)];
        depth = is_sure ? SURE_DEPTH : depth;
        uint32_t max = control->options.max_draft;
        s->listens |= moe_length_prices_guesses(&s->prices);
        if (s->listens) {
            depth = moe_length_prices_best_depth(&s->prices, max < FIRST_REACH ? max : FIRST_REACH);
        }
        bool only_guessed =
            moe_length_prices_guesses(&s->prices) && s->prices.depths[0].seen < HEARD;
        depth = only_guessed ? 1 : depth; /* should the guess be wrong */
        s->probe_depth = depth < max ? depth : max;
        part_reset(s);
    }
    if (s->mode == MODE_OFF && s->n_listened >= LISTEN_TOKENS) {
        turn_off(control, promise < LISTENS_FROM); /* heard, and not worth it */
    }
    s->n_listened = s->n_listened < LISTEN_TOKENS ? s->n_listened : 0;
    if (s->mode == MODE_OFF) {
        return 0;
    }
    bool is_in_doubt = base->age == 0 && moe_length_prices_in_doubt(&s->prices);
    if (is_in_doubt || base->age >= (rate_in_use(s) < CLOSE ? REFRESH_CLOSE : REFRESH_INTERVAL)) {
        s->refreshing = true;
        return 0;
    }
    s->exploring = s->mode == MODE_ON && s->n_on % EXPLORE_INTERVAL == EXPLORE_INTERVAL - 1 &&
                   s->account->left > EXPLORE_LEFT * base->cost * control->n_sequences;
    uint32_t max = control->options.max_draft;
    uint32_t wanted = s->mode == MODE_PROBE ? s->probe_depth : s->reach < max ? s->reach : max;
    return affordable(control, wanted, control->n_sequences);
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
            s->late_tokens = s->rate_tokens;
            s->late_cost = s->rate_cost;
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

/* Many sequences show more in an iteration. */
static uint32_t probe_iterations(const moe_length_control *control)
{
    uint32_t n = PROBE_ITERATIONS * MOE_LENGTH_BATCH / control->n_sequences;
    return n < LEAST_PROBE ? LEAST_PROBE : n < PROBE_ITERATIONS ? n : PROBE_ITERATIONS;
}

/* What plain decoding of the iteration's tokens would have cost, in t_base. */
static double plain_value(const survival_state *s, const moe_length_iteration *it, double unit)
{
    return it->models_misses ? (it->n_emitted * s->prices.compute_base + it->plain_fetch) / unit
                             : (double)it->n_emitted / it->n_sequences;
}

/* The misses of this pass that earlier drafts caused (below 0: that they spared). */
static double aftermath(const moe_length_iteration *it, double unit)
{
    return it->models_misses ? (it->modelled_fetch - it->plain_fetch) / unit : 0;
}

/* In t_base. Clips noise, but not known misses. */
static double clipped_verify(const survival_state *s, const moe_length_iteration *it, double unit)
{
    uint32_t extra = it->n_rows > it->n_sequences ? it->n_rows - it->n_sequences : 0;
    double fetch = it->models_misses ? it->modelled_fetch / unit : -1;
    double expected = moe_length_prices_verify(
        &s->prices, (extra + it->n_sequences - 1) / it->n_sequences, fetch);
    double verify = it->verify_cost / unit;
    return verify > COST_CLIP * expected ? COST_CLIP * expected : verify;
}

static void book(survival_state *s, const moe_length_iteration *it, double plain_cost, double cost,
                 double unit)
{
    if (!it->is_booked) {
        moe_length_account_add(s->account, plain_cost, cost, unit);
    }
}

/* Books an iteration in t_base, and handles the end of a probe or window. */
static void account(moe_length_control *control, const moe_length_iteration *it, bool plain)
{
    survival_state *s = control->state;
    double unit = control->base->cost * it->n_sequences;
    if (unit <= 0) {
        book(s, it, it->verify_cost, it->verify_cost, 0);
        return;
    }
    /* A plain iteration has lost what drafting and its aftermath cost, whatever the noise. */
    double value = plain ? it->verify_cost / unit - aftermath(it, unit) : plain_value(s, it, unit);
    double cost = plain ? it->verify_cost / unit : clipped_verify(s, it, unit);
    cost += it->draft_cost / unit;
    book(s, it, value * unit, cost * unit, unit);
    if (control->draft_length == 0) {
        return;
    }
    s->tokens += value;
    s->cost += cost;
    s->rate_tokens += (value - s->rate_tokens) / RATE_MEMORY;
    s->rate_cost += (cost - s->rate_cost) / RATE_MEMORY;
    double rows = it->n_rows > it->n_sequences ? it->n_rows - it->n_sequences : 0;
    rows = rows < it->n_sequences ? rows / it->n_sequences : 1;
    s->breadth += (rows - s->breadth) / LATE_MEMORY;
    s->late_tokens += (value - s->late_tokens) / LATE_MEMORY;
    s->late_cost += (cost - s->late_cost) / LATE_MEMORY;
    s->n_on += s->mode == MODE_ON;
    bool many = it->n_sequences >= MOE_LENGTH_BATCH;
    if (s->mode == MODE_ON && !many && it->n_emitted > it->n_sequences * s->reach) {
        s->reach *= 2; /* the whole draft was accepted */
    } else if (s->mode == MODE_ON && many && !plain && value > cost) {
        s->reach++;
    }
    if (may_lose(control) <= 0) {
        part_reset(s);
        turn_off(control, true);
        return;
    }
    /* If the drafter proposed nothing, a probe has learnt nothing. */
    s->n_done += !plain;
    if (s->n_done >= (s->mode == MODE_PROBE ? probe_iterations(control) : WINDOW)) {
        part_end(control);
    }
}

static void survival_end(moe_length_control *control, const moe_length_iteration *it)
{
    survival_state *s = control->state;
    bool plain = moe_length_is_plain(it);
    /* Priced before it is learnt from: an outlier must not raise its own limit. */
    account(control, it, plain);
    moe_length_prices_learn(&s->prices, control->base, it);
    if (s->mode == MODE_OFF && moe_length_prices_guesses(&s->prices)) {
        moe_length_prices_rest(&s->prices);
    }
    s->waited += s->mode != MODE_OFF                  ? 0
                 : it->n_sequences < MOE_LENGTH_BATCH ? 1
                                                      : MOE_LENGTH_BATCH;
}

static int survival_create(moe_length_control *control, moe_error *err)
{
    survival_state *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "length control: no memory for its state");
    }
    control->state = s;
    moe_length_account_init(&s->own);
    s->account = control->options.account != NULL ? control->options.account : &s->own;
    moe_length_prices_init(&s->prices, &control->options);
    double heard = s->prices.depths[0].seen;
    s->n_heard = heard < HEARD ? (uint32_t)heard : HEARD;
    s->breadth = FIRST_BREADTH;
    s->wait = FIRST_WAIT;
    s->waited = FIRST_WAIT; /* so that the first probe follows the first baseline */
    return MOE_OK;
}

const moe_length_ops moe_length_survival_ops = {.create = survival_create,
                                                .begin = survival_begin,
                                                .survival = survival_of,
                                                .continues = survival_continues,
                                                .promise = survival_promise,
                                                .keeps = survival_keeps,
                                                .cut = survival_cut,
                                                .note_token = survival_note,
                                                .wants_silent_drafts = survival_wants_silent_drafts,
                                                .listen = survival_listen,
                                                .get_habit = survival_get_habit,
                                                .rests = survival_rests,
                                                .wants_plain = survival_wants_plain,
                                                .end = survival_end,
                                                .keeps_base = true};
