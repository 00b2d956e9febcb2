/* SPDX-License-Identifier: MIT */
/* Runs lookahead's draft passes in pieces, a layer each, while passes of the text wait for experts.
 * A piece begins only if the wait is expected to last longer. So drafting costs almost no time, and
 * passes that do not wait get no draft.
 *
 *    pass   | compute | wait ............ | compute | wait ......... | compute |
 *    draft            | layer 3 | layer 4 |         | layer 5 | head |
 *
 * The pieces run on the pass's thread, on a second runner that shares everything with the engine's
 * except buffers and hooks. They use the experts that are resident at that time, and never move an
 * expert. */
#include <string.h>

#include <moe/moe.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/draft/lookahead.h"
#include "runtime/pass/program_run.h"

#define WEIGHT 0.2 /* of the newest piece in the average of their times */
/* The average time of a piece may be too long because of an outlier. If it exceeds every wait, no
 * piece runs any more that could correct it. So each time that no piece is run, the average is
 * multiplied by this factor. */
#define FORGET 0.995
#define CLIP   3.0
/* If an expert arrives within the time of this many layers, nothing is drafted: waits are then
 * too short, and the threads that draft would slow down the reads. */
#define LAYERS_PER_READ 1.0

int moe_ahead_pieces_attach(moe_speculation *s, const moe_pass_hook *hook, moe_error *err)
{
    moe_ahead_pieces *p = &s->ahead->pieces;
    moe_pass_buffers buffers = p->runner.buffers;
    p->runner = *s->runner;
    p->runner.buffers = buffers;
    p->runner.hooks = NULL;
    p->runner.at_host = NULL; /* all experts of a draft are in the device's slots */
    p->runner.at_device.timed = false;
    int status = MOE_OK;
    if (s->ahead->overlaps) {
        status = moe_pass_buffers_init(&p->runner.buffers, s->runner->device, s->runner->program,
                                       MOE_AHEAD_PIECE_ROWS, err);
    }
    p->hook = *hook;
    return status == MOE_OK && s->ahead->overlaps ? moe_runner_add_hook(&p->runner, &p->hook, err)
                                                  : status;
}

static bool is_listed(const moe_lookahead *a, const moe_session_draft *d)
{
    bool listed = false;
    for (size_t i = 0; i < a->n_lines; i++) {
        listed |= a->lines[i] == d;
    }
    return listed;
}

void moe_ahead_pieces_resume(moe_speculation *s)
{
    moe_lookahead *a = s->ahead;
    moe_ahead_pieces *p = &a->pieces;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        moe_ahead_row *row = &a->rows[r];
        if (!is_listed(a, row->draft) || row->draft->ahead->running != p->number) {
            p->n_rows = 0; /* the loop ends; the others' rows run again later */
            break;
        }
        row->index = row->draft->ahead->n;
        s->pass_depths[r] = row->index;
        moe_ahead_place_row(s, r);
    }
    for (size_t i = 0; p->n_rows == 0 && i < a->n_lines; i++) {
        a->lines[i]->ahead->running = 0;
    }
}

static bool begin(moe_speculation *s)
{
    moe_lookahead *a = s->ahead;
    moe_ahead_pieces *p = &a->pieces;
    moe_runner *runner = &p->runner;
    moe_error err;
    uint32_t n = moe_ahead_collect(s, a->lines, a->n_lines, MOE_AHEAD_PIECE_ROWS);
    if (n == 0) {
        return false;
    }
    p->pass = (moe_pass){.kind = MOE_PASS_DRAFT,
                         .n_rows = n,
                         .tokens = s->pass_tokens,
                         .kv_rows = s->pass_kv,
                         .depths = s->pass_depths,
                         .state_runs = s->pass_states,
                         .n_state_runs = n,
                         .logit_rows = s->pass_logit_rows,
                         .n_logit_rows = n,
                         .on_logits = moe_ahead_take_logits,
                         .user = s};
    int status = moe_pass_begin_step(runner, &p->pass, &p->inputs, &err);
    if (status == MOE_OK) {
        status = moe_program_front(runner, &p->pass, &err);
    }
    if (status != MOE_OK) {
        return false;
    }
    p->number++;
    p->n_rows = n;
    p->layer = 0;
    for (uint32_t r = 0; r < n; r++) {
        a->rows[r].draft->ahead->running = p->number;
    }
    return true;
}

static int run_layer(moe_speculation *s, moe_error *err)
{
    moe_ahead_pieces *p = &s->ahead->pieces;
    int status = moe_layer_front(&p->runner, &p->pass, p->layer, err);
    if (status == MOE_OK) {
        status = moe_layer_rest(&p->runner, &p->pass, p->layer, err);
    }
    p->layer++;
    return status;
}

/* Computes the logits of the pass's rows, and gives each line its next token. */
static int finish(moe_speculation *s, moe_error *err)
{
    moe_ahead_pieces *p = &s->ahead->pieces;
    bool done;
    int status = moe_pass_queue_logits(&p->runner, p->pass.logit_rows, p->n_rows, err);
    if (status == MOE_OK) {
        status = moe_pass_hand_over(&p->runner, &p->pass, 0, p->n_rows, &done, err);
    }
    p->n_rows = 0;
    s->stats.lookahead_passes++;
    return status;
}

/* Drops a draft pass that failed. If the cause also concerns the text, the text's own pass will
 * report it. */
static void drop(moe_speculation *s)
{
    moe_lookahead *a = s->ahead;
    a->pieces.n_rows = 0;
    for (size_t i = 0; i < a->n_lines; i++) {
        a->lines[i]->ahead->running = 0;
    }
}

static void note_time(double *average, double ns)
{
    double most = CLIP * *average;
    ns = *average > 0 && ns > most ? most : ns;
    *average += (*average == 0 ? 1 : WEIGHT) * (ns - *average);
}

static bool any_tree(const moe_lookahead *a)
{
    bool any = false;
    for (size_t i = 0; i < a->n_lines; i++) {
        any |= a->lines[i]->tree.n > 1; /* its rows are stored where the line's rows would be */
    }
    return any;
}

bool moe_ahead_pieces_run(moe_speculation *s, uint64_t expected_ns)
{
    moe_lookahead *a = s->ahead;
    moe_ahead_pieces *p = &a->pieces;
    uint32_t n_layer = s->runner->config->n_layer;
    if (!a->overlaps || a->pass != s->runner->n_passes || any_tree(a)) {
        return false;
    }
    uint64_t begun = moe_now_ns();
    if (p->n_rows == 0 && !begin(s)) {
        return false;
    }
    double *expected = p->layer < n_layer ? &p->layer_ns : &p->logits_ns;
    if (*expected > (double)expected_ns ||
        LAYERS_PER_READ * p->layer_ns > (double)moe_expert_store_read_ns(s->runner->experts)) {
        p->layer_ns *= FORGET;
        p->logits_ns *= FORGET;
        return false;
    }
    moe_error err;
    MOE_ASSERT(p->n_rows <= MOE_AHEAD_PIECE_ROWS && p->layer <= n_layer);
    a->drafts = true;
    int status = p->layer < n_layer ? run_layer(s, &err) : finish(s, &err);
    a->drafts = false;
    a->has_news = true;
    uint64_t ns = moe_now_ns() - begun;
    note_time(expected, (double)ns);
    s->stats.lookahead_ns += ns;
    s->stats.lookahead_hidden_ns += ns < expected_ns ? ns : expected_ns;
    if (status != MOE_OK) {
        drop(s);
    }
    return status == MOE_OK;
}

uint32_t moe_speculation_piece_rows(const moe_engine_options *o, const moe_device *device)
{
    moe_switch overlap = o->lab->lookahead_overlap;
    bool repeatable = o->lab->cost_by_bytes || o->lab->trace_path != NULL;
    bool overlaps = o->lookahead > 0 && device->link == NULL && !device->queues &&
                    (overlap == MOE_SWITCH_ON || (overlap == MOE_SWITCH_AUTO && !repeatable));
    return overlaps ? MOE_AHEAD_PIECE_ROWS : 0;
}
