/* SPDX-License-Identifier: MIT */
/* The contract of length control: options, baselines by number of sequences, trace and report. The
 * controllers (length_static.c, length_cascade.c, length_survival.c) decide how long a draft may
 * be.
 *
 *  begin --K--> [continues, survival, cut]* --> verification --> note_token* --> end
 *
 * Utility is tokens * t_base / cost. If t_base is the plain cost of one sequence's token, this is
 * ETR / (t_spec / t_base) of the Cascade paper, for any number of sequences. */
#include "runtime/draft/length_control.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/length_controller.h"

#define TRACE_INITIAL_CAPACITY 4096u

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

int moe_length_control_create(moe_length_control **out, const moe_length_options *options,
                              moe_error *err)
{
    static const moe_length_ops *const controllers[] = {[MOE_LENGTH_SURVIVAL] =
                                                            &moe_length_survival_ops,
                                                        [MOE_LENGTH_CASCADE] = &moe_length_cascade,
                                                        [MOE_LENGTH_STATIC] = &moe_length_static};
    *out = NULL;
    if ((uint32_t)options->kind >= sizeof controllers / sizeof *controllers) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "length control: no kind %u",
                        (unsigned)options->kind);
    }
    if (options->max_draft > UINT8_MAX) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "length control: at most %u tokens, not %u",
                        (unsigned)UINT8_MAX, options->max_draft);
    }
    moe_length_control *control = moe_calloc(1, sizeof *control);
    uint8_t *trace = moe_calloc(TRACE_INITIAL_CAPACITY, 1);
    if (control == NULL || trace == NULL) {
        free(trace);
        free(control);
        return moe_fail(err, MOE_ERR_MEMORY, "length control: no memory for its state");
    }
    control->trace = trace;
    control->trace_capacity = TRACE_INITIAL_CAPACITY;
    control->options = *options;
    moe_length_options *o = &control->options;
    o->trial_iterations = or_default(o->trial_iterations, 4);
    o->test_trials = or_default(o->test_trials, 4);
    o->set_iterations = or_default(o->set_iterations, 16);
    o->baseline_iterations = or_default(o->baseline_iterations, 4);
    o->refresh_iterations = or_default(o->refresh_iterations, 100);
    control->ops = controllers[options->kind];
    control->base = &control->bases[0];
    control->report.utility = control->report.utility_harmonic_mean = 1;
    control->report.utility_worst = 1;
    int status = control->ops->create(control, err);
    if (status != MOE_OK) {
        moe_length_control_free(&control);
        return status;
    }
    *out = control;
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

uint32_t moe_length_begin(moe_length_control *control, uint32_t n_sequences)
{
    control->n_sequences_changed = n_sequences != control->n_sequences;
    if (control->n_sequences_changed) {
        moe_length_base before = *control->base;
        control->base = &control->bases[n_sequences % MOE_LENGTH_BASE_SLOTS];
        if (control->base->n_sequences != n_sequences) {
            *control->base = (moe_length_base){.n_sequences = n_sequences};
            bool shrinks = n_sequences >= MOE_LENGTH_BATCH && n_sequences < control->n_sequences;
            if (shrinks && control->ops->keeps_base) {
                *control->base = before;
                control->base->n_sequences = n_sequences;
            }
        }
        control->n_sequences = n_sequences;
    }
    control->listen_length = 0;
    control->draft_length = control->options.max_draft == 0 ? 0 : control->ops->begin(control);
    return control->draft_length;
}

double moe_length_survival(const moe_length_control *control, uint32_t depth, float confidence)
{
    /* The comparison is false for NaN, which thus counts as no confidence. */
    float clamped = confidence > 0 ? (confidence < 1 ? confidence : 1) : 0;
    return control->ops->survival(control, depth, clamped);
}

bool moe_length_continues(const moe_length_control *control, uint32_t depth, double path_survival,
                          uint32_t n_sharing)
{
    return depth < control->listen_length ||
           (depth < control->draft_length &&
            control->ops->continues(control, depth, path_survival, n_sharing));
}

uint32_t moe_length_cut(const moe_length_control *control, const double *survival,
                        const double *fetch_cost, uint32_t n, uint32_t n_sharing)
{
    return control->ops->cut(control, survival, fetch_cost, n, n_sharing);
}

void moe_length_note_token(moe_length_control *control, uint32_t depth, float confidence,
                           bool accepted)
{
    float clamped = confidence > 0 ? (confidence < 1 ? confidence : 1) : 0;
    control->ops->note_token(control, depth, clamped, accepted);
}

double moe_length_promise(const moe_length_control *control)
{
    return control->ops->promise != NULL ? control->ops->promise(control) : 0;
}

void moe_length_note_drafts(moe_length_control *control, double n_tokens, uint32_t n_rows)
{
    if (control->ops->note_drafts != NULL) {
        control->ops->note_drafts(control, n_tokens, n_rows);
    }
}

bool moe_length_hears_silent_drafts(const moe_length_control *control)
{
    return control->ops->hears_silent_drafts;
}

uint32_t moe_length_listen(moe_length_control *control)
{
    bool may = control->ops->listen != NULL && control->draft_length == 0;
    control->listen_length = may ? control->ops->listen(control) : 0;
    return control->listen_length;
}

bool moe_length_keeps(const moe_length_control *control, double path_survival)
{
    return control->ops->keeps == NULL || control->ops->keeps(control, path_survival);
}

bool moe_length_get_habit(const moe_length_control *control, moe_draft_habit *habit)
{
    return control->ops->get_habit != NULL && control->ops->get_habit(control, habit);
}

bool moe_length_rests(const moe_length_control *control)
{
    return control->ops->rests != NULL && control->ops->rests(control);
}

bool moe_length_wants_plain(const moe_length_control *control)
{
    return control->ops->wants_plain != NULL && control->ops->wants_plain(control);
}

/* If memory for the trace is short, it stops growing: a plot is no reason to fail a decode. */
static void trace_add(moe_length_control *control)
{
    if (control->n_trace == control->trace_capacity) {
        uint8_t *grown = moe_realloc_array(control->trace, 2 * control->trace_capacity, 1);
        if (grown == NULL) {
            return;
        }
        control->trace = grown;
        control->trace_capacity *= 2;
    }
    control->trace[control->n_trace++] = (uint8_t)control->draft_length;
}

static void report_add(moe_length_control *control, const moe_length_iteration *iteration)
{
    moe_length_report *report = &control->report;
    moe_length_sum *slot = &control->recent[report->n_iterations % MOE_LENGTH_WINDOW];
    double base = control->base->cost;
    double cost = iteration->draft_cost + iteration->verify_cost;
    /* While there is no baseline, the iteration's own cost is taken for it, so the utility is 1. */
    *slot = (moe_length_sum){.tokens = iteration->n_emitted,
                             .cost = base > 0 ? cost / base : iteration->n_emitted};
    report->n_iterations++;
    report->n_speculating += control->draft_length > 0;
    moe_length_sum sum = {0, 0};
    for (uint32_t i = 0; i < MOE_LENGTH_WINDOW; i++) {
        sum.tokens += control->recent[i].tokens;
        sum.cost += control->recent[i].cost;
    }
    report->utility = sum.cost > 0 ? sum.tokens / sum.cost : 1;
    if (report->n_iterations % MOE_LENGTH_WINDOW == 0 && report->utility > 0) {
        control->n_runs++;
        control->inverse_utility_sum += 1 / report->utility;
        report->utility_harmonic_mean = (double)control->n_runs / control->inverse_utility_sum;
        if (control->n_runs == 1 || report->utility < report->utility_worst) {
            report->utility_worst = report->utility;
        }
    }
}

void moe_length_end(moe_length_control *control, const moe_length_iteration *iteration)
{
    if (control->base->age < UINT32_MAX) {
        control->base->age++;
    }
    trace_add(control);
    if (iteration->n_sequences > 0) {
        control->ops->end(control, iteration);
    }
    report_add(control, iteration);
}

void moe_length_get_report(const moe_length_control *control, moe_length_report *report)
{
    *report = control->report;
    report->base_cost = control->base->cost;
    report->draft_length = control->draft_length;
}

const uint8_t *moe_length_trace(const moe_length_control *control, uint64_t *n)
{
    *n = control->n_trace;
    return control->trace;
}
