/* SPDX-License-Identifier: MIT */
/* Test-and-set of the Cascade paper (5.3 to 5.6; algorithms, section 2).
 *
 *              trial_end(): more to try
 *                 +--------+
 *                 v        |
 *  BASELINE --> TEST ------+--test_end()--> SET (K, or 0 while U < 1)
 *  (4 at K=0)     ^                          |
 *                 +--------- set_end() ------+
 *
 * A baseline that is 100 iterations old is measured anew by 4 iterations at K = 0, which interrupt
 * any phase; the phase then continues. A set phase at K = 0 refreshes the baseline by itself.
 *
 * Where the paper is not explicit, this file interprets it as follows. The first step from K_start
 * goes up if K_start paid, and down if it did not or is the ceiling. A step skips values that were
 * already tried in this phase. "Utility falls over successive trials" means two falls in
 * succession, because the first fall only turns the climb. "Recent" means within 100 iterations. S
 * is doubled before a set phase at K = 0, so the first such phase lasts 32 iterations. */
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/length_fixed.h"

#include <math.h>
#include <string.h>

#define FIRST_DRAFT_LENGTH 3u
#define CONVERGED          0.10
#define MAX_SET_ITERATIONS (1u << 24) /* doubling ends here: years of decoding */

typedef enum cascade_phase { CASCADE_TEST, CASCADE_SET } cascade_phase;

typedef struct cascade_measure {
    double utility;
    uint64_t iteration; /* when; 0: never */
} cascade_measure;

typedef struct cascade_state {
    cascade_phase phase;
    bool measuring_base;   /* this iteration measures the baseline, outside of the phase */
    uint32_t draft_length; /* K of the phase */
    /* Progress of the current trial or set phase. */
    uint32_t n_done, n_tokens;
    double cost;
    /* The test phase. */
    bool tested[UINT8_MAX + 1];
    uint32_t n_trials, n_falls;
    int direction;
    double previous_utility, best_utility;
    uint32_t best_length;
    /* Kept across phases. */
    uint32_t set_iterations; /* S, doubled by back-off */
    cascade_measure measured[UINT8_MAX + 1];
    uint64_t now;
} cascade_state;

static void part_begin(cascade_state *s, cascade_phase phase, uint32_t draft_length)
{
    s->phase = phase;
    s->draft_length = draft_length;
    s->n_done = s->n_tokens = 0;
    s->cost = 0;
}

/* Begins a test phase. The first K is 1 after a phase at K = 0, else the best K of the recent
 * past. */
static void test_begin(moe_length_control *control, bool disabled)
{
    cascade_state *s = control->state;
    uint32_t max = control->options.max_draft;
    uint32_t start = max < FIRST_DRAFT_LENGTH ? max : FIRST_DRAFT_LENGTH;
    double best = 0;
    for (uint32_t k = 1; k <= max && !disabled; k++) {
        const cascade_measure *m = &s->measured[k];
        bool recent =
            m->iteration > 0 && s->now - m->iteration <= control->options.refresh_iterations;
        if (recent && m->utility > best) {
            best = m->utility;
            start = k;
        }
    }
    memset(s->tested, 0, sizeof s->tested);
    s->n_trials = s->n_falls = 0;
    s->direction = 0;
    s->previous_utility = s->best_utility = 0;
    s->best_length = 0;
    part_begin(s, CASCADE_TEST, disabled ? 1 : start);
}

/* Ends the test phase, and begins the set phase with the best K that was tested, or with K = 0. */
static void test_end(moe_length_control *control)
{
    cascade_state *s = control->state;
    if (s->best_utility >= 1 || control->options.no_disable) {
        s->set_iterations = control->options.set_iterations;
        part_begin(s, CASCADE_SET, s->best_length);
        return;
    }
    control->report.n_disabled++;
    if (!control->options.no_back_off && s->set_iterations < MAX_SET_ITERATIONS) {
        s->set_iterations *= 2;
    }
    part_begin(s, CASCADE_SET, 0);
}

/* Returns the next K of the hill climb; 0: the climb is over. */
static uint32_t climb(const moe_length_control *control, cascade_state *s, double utility)
{
    int64_t max = control->options.max_draft;
    if (s->direction == 0) {
        s->direction = utility >= 1 && s->draft_length < max ? 1 : -1;
    } else if (utility <= s->previous_utility) {
        s->direction = -s->direction;
    }
    int64_t k = s->draft_length;
    do {
        k += s->direction;
    } while (k >= 1 && k <= max && s->tested[k]);
    return k >= 1 && k <= max ? (uint32_t)k : 0;
}

/* Returns a K that has not been tried yet (for the ablation without early exits). */
static uint32_t untried(const moe_length_control *control, const cascade_state *s)
{
    for (uint32_t k = control->options.max_draft; k >= 1; k--) {
        if (!s->tested[k]) {
            return k;
        }
    }
    return 0;
}

static void trial_end(moe_length_control *control, double utility)
{
    cascade_state *s = control->state;
    const moe_length_options *o = &control->options;
    bool first = s->n_trials == 0;
    bool converged =
        !first && fabs(utility - s->previous_utility) <= CONVERGED * s->previous_utility;
    s->tested[s->draft_length] = true;
    s->n_trials++;
    s->n_falls = !first && utility < s->previous_utility ? s->n_falls + 1 : 0;
    if (first || utility > s->best_utility) {
        s->best_utility = utility;
        s->best_length = s->draft_length;
    }
    bool leave = converged || s->n_falls >= 2 || (s->draft_length == 1 && utility < 1);
    bool climbs = s->n_trials < o->test_trials && !o->no_climb;
    uint32_t next = climbs ? climb(control, s, utility) : 0;
    if (o->no_early_exit && !o->no_climb && s->n_trials < o->test_trials) {
        leave = false;
        next = next != 0 ? next : untried(control, s);
    }
    if (leave || next == 0) {
        test_end(control);
        return;
    }
    s->previous_utility = utility;
    part_begin(s, CASCADE_TEST, next);
}

static void phase_step(moe_length_control *control, const moe_length_iteration *iteration)
{
    cascade_state *s = control->state;
    uint32_t length =
        s->phase == CASCADE_TEST ? control->options.trial_iterations : s->set_iterations;
    s->n_done++;
    s->n_tokens += iteration->n_emitted;
    s->cost += iteration->draft_cost + iteration->verify_cost;
    if (s->n_done < length) {
        return;
    }
    double utility = s->cost > 0 ? s->n_tokens * control->base->cost / s->cost : 1;
    s->measured[s->draft_length] = (cascade_measure){utility, s->now};
    if (s->phase == CASCADE_TEST) {
        trial_end(control, utility);
    } else {
        test_begin(control, s->draft_length == 0);
    }
}

static int cascade_create(moe_length_control *control, moe_error *err)
{
    cascade_state *s = moe_calloc(1, sizeof *s);
    if (s == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "length control: no memory for its state");
    }
    control->state = s;
    s->set_iterations = control->options.set_iterations;
    test_begin(control, false);
    return MOE_OK;
}

static uint32_t cascade_begin(moe_length_control *control)
{
    cascade_state *s = control->state;
    moe_length_base *base = control->base;
    if (control->n_sequences_changed) {
        /* If the number of sequences changes, drops the trial, which says nothing about the new
         * number. */
        part_begin(s, s->phase, s->draft_length);
        base->sum = base->n_sum = 0;
    }
    bool stale = base->cost <= 0 || base->age >= control->options.refresh_iterations;
    /* A set phase at K = 0 is itself plain decoding, so it refreshes the baseline. Drops a
     * baseline measurement that was not complete. */
    bool idle = s->phase == CASCADE_SET && s->draft_length == 0 && base->cost > 0;
    s->measuring_base = !idle && stale;
    if (!idle && !stale) {
        base->sum = base->n_sum = 0;
    }
    return s->measuring_base ? 0 : s->draft_length;
}

static void cascade_end(moe_length_control *control, const moe_length_iteration *iteration)
{
    cascade_state *s = control->state;
    moe_length_base *base = control->base;
    s->now++;
    if (control->draft_length == 0) {
        base->sum += iteration->verify_cost / iteration->n_sequences;
        if (++base->n_sum == control->options.baseline_iterations) {
            base->cost = base->sum / base->n_sum;
            base->sum = base->n_sum = 0;
            base->age = 0;
        }
    }
    if (!s->measuring_base) {
        phase_step(control, iteration);
    }
}

const moe_length_ops moe_length_cascade = {.create = cascade_create,
                                           .begin = cascade_begin,
                                           .survival = moe_length_fixed_survival,
                                           .continues = moe_length_fixed_continues,
                                           .cut = moe_length_fixed_cut,
                                           .note_token = moe_length_fixed_note,
                                           .end = cascade_end};
