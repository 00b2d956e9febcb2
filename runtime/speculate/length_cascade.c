/* SPDX-License-Identifier: MIT */
/* The Cascade paper's manager (sections 5.2 to 5.6; algorithms, section 2):
 *
 *   BASE (4 at K = 0) --> TEST (trials of t = 4 at K, at most 4) --> SET (S = 16 at the best K)
 *     ^                      ^                                          |
 *     | every 100 iterations +------------------------------------------+
 *     +-----------------------------------------------------------------+
 *
 * A trial's utility is tokens over cost, against the baseline. */
#include <string.h>

#include "runtime/speculate/length_internal.h"

#define FIRST_LENGTH 3u
#define SAME_SHARE   0.1 /* successive utilities this near end the test */
#define MOST_LENGTH  64u
#define MOST_SET     4096u

typedef enum cascade_phase { PHASE_BASE, PHASE_TEST, PHASE_SET } cascade_phase;

typedef struct cascade {
    cascade_phase phase;
    uint32_t left;              /* iterations of the phase or trial */
    uint32_t length;            /* K */
    uint32_t set_length;        /* S, doubled by the back-off */
    uint32_t since_base;        /* iterations since the baseline was measured */
    double recent[MOST_LENGTH]; /* the last utility of each K; 0: unknown */
    /* The test. */
    uint32_t n_trials;
    uint32_t tried[16];
    double utility[16];
    double tokens, cost; /* of the trial */
    /* The set phase, watched for the back-off's reset. */
    bool disabled;
} cascade;

static void begin_base(moe_length_control *c, cascade *s)
{
    s->phase = PHASE_BASE;
    s->left = c->options.baseline_iterations;
    s->length = 0;
    s->since_base = 0;
}

static void begin_trial(moe_length_control *c, cascade *s, uint32_t length)
{
    s->phase = PHASE_TEST;
    s->left = c->options.trial_iterations;
    s->length = length;
    s->tokens = s->cost = 0.0;
}

static uint32_t first_length(const moe_length_control *c, const cascade *s)
{
    uint32_t best = 0;
    uint32_t most = c->options.max_draft < MOST_LENGTH ? c->options.max_draft : MOST_LENGTH - 1;
    if (s->disabled) {
        return 1;
    }
    for (uint32_t k = 1; k <= most; k++) {
        if (s->recent[k] > 0.0 && (best == 0 || s->recent[k] > s->recent[best])) {
            best = k;
        }
    }
    best = best > 0 ? best : FIRST_LENGTH;
    return best < most ? best : most;
}

static void begin_test(moe_length_control *c, cascade *s)
{
    s->n_trials = 0;
    begin_trial(c, s, first_length(c, s));
}

static void init(moe_length_control *c)
{
    cascade *s = c->state;
    memset(s, 0, sizeof *s);
    s->set_length = c->options.set_iterations;
    begin_base(c, s);
}

static void begin_set(moe_length_control *c, cascade *s)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n_trials; i++) {
        best = s->utility[i] > s->utility[best] ? i : best;
    }
    bool pays = s->utility[best] >= 1.0 || c->options.no_disable;
    s->phase = PHASE_SET;
    s->length = pays ? s->tried[best] : 0;
    if (pays) {
        s->set_length = c->options.set_iterations;
    } else {
        c->report.n_disabled += !s->disabled;
        if (!c->options.no_back_off && s->set_length < MOST_SET) {
            s->set_length *= 2;
        }
    }
    s->disabled = !pays;
    s->left = s->set_length;
}

/* True when the trials so far say enough. */
static bool test_is_over(const moe_length_control *c, const cascade *s)
{
    uint32_t last = s->n_trials - 1;
    if (s->n_trials >= c->options.test_trials || s->n_trials >= 16) {
        return true;
    }
    if (s->tried[last] == 1 && s->utility[last] < 1.0 && !c->options.no_disable) {
        return true;
    }
    if (c->options.no_early_exit || last == 0) {
        return false;
    }
    double change = s->utility[last] / s->utility[last - 1];
    bool fell_twice = last >= 2 && s->utility[last] < s->utility[last - 1] &&
                      s->utility[last - 1] < s->utility[last - 2];
    return fell_twice || (change > 1.0 - SAME_SHARE && change < 1.0 + SAME_SHARE);
}

/* Hill-climbing: on in the direction in which utility rises, otherwise back past where it was
 * best; 0: there is nowhere left to go. */
static uint32_t next_length(const moe_length_control *c, const cascade *s)
{
    uint32_t last = s->n_trials - 1;
    int direction;
    if (last == 0) {
        direction = s->utility[0] >= 1.0 && s->tried[0] < c->options.max_draft ? 1 : -1;
    } else {
        direction = s->tried[last] > s->tried[last - 1] ? 1 : -1;
        direction = s->utility[last] >= s->utility[last - 1] ? direction : -direction;
    }
    uint32_t next = s->tried[last];
    for (;;) {
        if ((direction < 0 && next == 1) || (direction > 0 && next >= c->options.max_draft)) {
            return 0;
        }
        next = (uint32_t)((int)next + direction);
        bool tried = false;
        for (uint32_t i = 0; i < s->n_trials; i++) {
            tried |= s->tried[i] == next;
        }
        if (!tried) {
            return next;
        }
    }
}

static void end_trial(moe_length_control *c, cascade *s)
{
    double utility = s->cost > 0.0 && c->base > 0.0 ? s->tokens * c->base / s->cost : 1.0;
    s->tried[s->n_trials] = s->length;
    s->utility[s->n_trials++] = utility;
    s->recent[s->length < MOST_LENGTH ? s->length : MOST_LENGTH - 1] = utility;
    uint32_t next = test_is_over(c, s) ? 0 : next_length(c, s);
    if (next == 0) {
        begin_set(c, s);
    } else {
        begin_trial(c, s, next);
    }
}

static uint32_t begin(moe_length_control *c)
{
    return ((const cascade *)c->state)->length;
}

static bool go_on(const moe_length_control *c, uint32_t depth, double path_survival)
{
    (void)path_survival;
    return depth < c->length;
}

static uint32_t cut(const moe_length_control *c, const double *survival, const double *fetch_cost,
                    uint32_t n)
{
    (void)c;
    (void)survival;
    (void)fetch_cost;
    return n;
}

static void end(moe_length_control *c, const moe_length_iteration *i, double utility)
{
    cascade *s = c->state;
    (void)utility;
    s->since_base++;
    s->tokens += (double)i->n_emitted / i->n_sequences;
    s->cost += i->draft_cost + i->verify_cost;
    if (--s->left > 0) {
        return;
    }
    if (s->phase == PHASE_TEST) {
        end_trial(c, s);
    } else if (s->phase == PHASE_SET && s->since_base >= c->options.refresh_iterations &&
               s->length > 0) {
        begin_base(c, s);
    } else {
        /* A set phase at K = 0 has refreshed the baseline by itself. */
        begin_test(c, s);
    }
}

const moe_length_kind_ops moe_length_cascade = {.state_size = sizeof(cascade),
                                                .init = init,
                                                .begin = begin,
                                                .go_on = go_on,
                                                .cut = cut,
                                                .end = end,
                                                .restart = init};
