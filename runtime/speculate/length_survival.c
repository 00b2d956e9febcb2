/* SPDX-License-Identifier: MIT */
/* Every drafted token has a price and a worth. Its worth is the probability that it survives (the
 * calibrated acceptances of its path multiplied), in units of what a plainly decoded token costs;
 * its price is its share of the draft, one more row in verification, and the experts that this row
 * alone brings in. A draft goes on while the next token's worth covers its price, and is then cut
 * to the prefix with the most expected tokens per cost, which may be none.
 *
 * Prices are learnt of iterations, so they can be wrong; the guard is what keeps the promise. It
 * watches utility over runs of iterations that did speculate:
 *
 *     OFF for n iterations --> PROBE (4) --U >= 1--> ON (runs of 16) --U < 1--> OFF for 2n
 *          ^ 2n                   | U < 1                   |  U >= 1: n starts over
 *          +----------------------+                         +--> ON
 *
 * A probe that fails costs a few tokens' time, and comes half as often each time. */
#include <string.h>

#include "runtime/speculate/length_internal.h"

#define COST_WEIGHT 0.15 /* of the newest sample in moving averages */
#define LEARN_PLAIN 4u   /* iterations before the first draft */
#define PROBE       4u
#define RUN         16u
#define FIRST_OFF   16u
#define MOST_OFF    8192u
#define REFRESH     64u /* drafting iterations between two plain ones */
#define OUTLIER     4.0 /* a cost this many times the usual is taken for the machine's */

typedef enum guard_state { GUARD_PROBE, GUARD_ON, GUARD_OFF } guard_state;

typedef struct survival {
    guard_state guard;
    uint32_t off_left, off_length;
    uint32_t run_n;
    double run_tokens, run_cost;
    double utility; /* of the last run that paid; at least 1 */
    uint32_t since_plain;
    double draft_pass; /* cost of one */
    double row;        /* of one more row in verification, without waiting */
    double row_fetch;  /* waiting that one more row has added */
} survival;

static void begin_run(survival *s)
{
    s->run_n = 0;
    s->run_tokens = s->run_cost = 0.0;
}

static void init(moe_length_control *c)
{
    survival *s = c->state;
    memset(s, 0, sizeof *s);
    s->off_length = FIRST_OFF;
    s->utility = 1.0;
}

/* Other costs: they are learnt anew; the guard's patience stays as it is. */
static void restart(moe_length_control *c)
{
    survival *s = c->state;
    s->draft_pass = s->row = s->row_fetch = 0.0;
    s->since_plain = 0;
    begin_run(s);
}

static uint32_t begin(moe_length_control *c)
{
    const survival *s = c->state;
    bool learning = c->n_plain < LEARN_PLAIN || s->since_plain >= REFRESH;
    return learning || s->guard == GUARD_OFF ? 0 : c->options.max_draft;
}

/* What a token is worth: the cost of getting it otherwise, at the rate that is being reached. */
static double worth_of_token(const moe_length_control *c, const survival *s)
{
    return c->base / s->utility;
}

static bool go_on(const moe_length_control *c, uint32_t depth, double path_survival)
{
    const survival *s = c->state;
    double price = (s->draft_pass + s->row + s->row_fetch) / c->n_sequences;
    /* The next token is accepted about as often as this path's tokens were. */
    double next = path_survival * (path_survival < 0.95 ? path_survival : 0.95);
    return depth < c->length && next * worth_of_token(c, s) / c->n_sequences >= price;
}

static uint32_t cut(const moe_length_control *c, const double *survival_of,
                    const double *fetch_cost, uint32_t n)
{
    const survival *s = c->state;
    double tokens = 1.0;
    double best_rate = 0.0;
    uint32_t best = 0;
    double plain = c->base - c->base_fetch;
    for (uint32_t i = 0; i <= n; i++) {
        tokens += i > 0 ? survival_of[i - 1] : 0.0;
        double fetch = fetch_cost != NULL ? fetch_cost[i] : c->base_fetch + i * s->row_fetch;
        double rate = tokens / (plain + i * s->row + fetch);
        if (rate > best_rate) {
            best_rate = rate;
            best = i;
        }
    }
    return best;
}

static void average(double *value, double sample)
{
    sample = sample > 0.0 ? sample : 0.0;
    if (*value > 0.0 && sample > OUTLIER * *value) {
        sample = OUTLIER * *value;
    }
    *value += (*value == 0.0 ? 1.0 : COST_WEIGHT) * (sample - *value);
}

static void learn_prices(const moe_length_control *c, survival *s, const moe_length_iteration *i)
{
    uint32_t extra = i->n_rows > i->n_sequences ? i->n_rows - i->n_sequences : 0;
    if (i->n_draft_passes > 0) {
        average(&s->draft_pass, i->draft_cost / i->n_draft_passes);
    }
    if (extra > 0 && c->base > 0.0) {
        double computing = i->verify_cost - i->fetch_cost - (c->base - c->base_fetch);
        average(&s->row, computing / extra);
        average(&s->row_fetch, (i->fetch_cost - c->base_fetch) / extra);
    }
}

static void turn_off(moe_length_control *c, survival *s)
{
    s->guard = GUARD_OFF;
    s->off_left = s->off_length;
    s->off_length = s->off_length < MOST_OFF ? 2 * s->off_length : s->off_length;
    s->utility = 1.0;
    c->report.n_disabled++;
}

static void end_run(moe_length_control *c, survival *s)
{
    double utility = s->run_tokens * c->base / s->run_cost;
    if (utility < 1.0) {
        turn_off(c, s);
    } else if (s->guard == GUARD_ON) {
        s->utility = utility;
        s->off_length = FIRST_OFF;
    }
    if (s->guard == GUARD_PROBE) {
        s->guard = GUARD_ON;
    }
    begin_run(s);
}

static void end(moe_length_control *c, const moe_length_iteration *i, double utility)
{
    survival *s = c->state;
    (void)utility;
    bool drafted = i->n_drafted > 0 || i->n_draft_passes > 0;
    learn_prices(c, s, i);
    if (s->guard == GUARD_OFF) {
        if (--s->off_left == 0) {
            s->guard = GUARD_PROBE;
            begin_run(s);
        }
        return;
    }
    s->since_plain = drafted ? s->since_plain + 1 : 0;
    if (!drafted || c->base <= 0.0) {
        return;
    }
    s->run_tokens += (double)i->n_emitted / i->n_sequences;
    s->run_cost += i->draft_cost + i->verify_cost;
    s->run_n++;
    if (s->run_n == (s->guard == GUARD_PROBE ? PROBE : RUN)) {
        end_run(c, s);
    }
}

const moe_length_kind_ops moe_length_survival_ops = {.state_size = sizeof(survival),
                                                     .init = init,
                                                     .begin = begin,
                                                     .go_on = go_on,
                                                     .cut = cut,
                                                     .end = end,
                                                     .restart = restart};
