/* SPDX-License-Identifier: MIT */
/* The program's front -> its layers -> its back.
 *
 * If the device records operations, a pass of a few rows replays the front of each layer: the
 * operations before the host has to know the layer's routing. */
#include "runtime/pass/pass.h"

#include <math.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/finite.h"
#include "runtime/pass/program_run.h"
#include "runtime/pass/routing.h"
#include "runtime/pass/runner.h"
#include "runtime/program/op_forms.h"

#define MOST_TRIED_ROWS 64u

int moe_pass_queue_logits(moe_runner *runner, const uint32_t *rows, uint32_t n, moe_error *err)
{
    MOE_ASSERT(n > 0 && n <= MOE_LOGIT_ROWS);
    for (uint32_t i = 0; MOE_ASSERTS_ARE_ON && i + 1 < n; i++) {
        MOE_ASSERT(rows[i] < rows[i + 1]);
    }
    const moe_run run = {.runner = runner, .n_rows = n, .rows = rows};
    return moe_program_run(&run, runner->program->back, err);
}

/* Fetches the logits together with the normed hidden states that they are computed from. The hidden
 * states are checked, too: a product with quantised weights may hide a value that is not finite. */
static int fetch(moe_runner *runner, uint32_t n, uint32_t n_behind, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    size_t n_selected = (size_t)n * runner->config->n_embd;
    size_t bytes = (n_selected + (size_t)n * n_behind) * sizeof(float);
    const moe_device_ops *ops = runner->device->ops;
    float *to = b->logits_host - n_selected;
    const float *from = b->values[MOE_VALUE_LOGITS] - n_selected;
    return n_behind > 0 ? ops->download(runner->device, to, from, bytes, err)
                        : ops->download_later(runner->device, to, from, bytes, err);
}

static bool selected_are_finite(const moe_runner *runner, uint32_t n)
{
    size_t n_selected = (size_t)n * runner->config->n_embd;
    return moe_all_finite(runner->buffers.logits_host - n_selected, n_selected);
}

static int hand_over_logits(moe_runner *runner, const moe_pass *pass, uint32_t first, uint32_t n,
                            bool *done, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    size_t n_vocab = runner->config->n_vocab;
    MOE_TRY(fetch(runner, n, runner->config->n_vocab, err));
    if (!(selected_are_finite(runner, n) && moe_all_finite(b->logits_host, n * n_vocab))) {
        return moe_pass_fail_not_finite(runner, pass, err);
    }
    const size_t n_embd = runner->config->n_embd;
    const float *hidden = b->logits_host - n * n_embd;
    for (uint32_t i = 0; i < n && !*done; i++) {
        *done = !pass->on_logits(pass->logit_rows[first + i], hidden + i * n_embd,
                                 b->logits_host + i * n_vocab, pass->user);
    }
    return MOE_OK;
}

static int hand_over_greatest(moe_runner *runner, const moe_pass *pass, uint32_t first, uint32_t n,
                              bool *done, moe_error *err)
{
    moe_greatest host[MOE_LOGIT_ROWS];
    moe_pass_buffers *b = &runner->buffers;
    const moe_device_ops *ops = runner->device->ops;
    moe_greatest *device = (moe_greatest *)b->values[MOE_VALUE_GREATEST];
    bool finite = true;
    MOE_TRY(ops->greatest(runner->device, b->values[MOE_VALUE_LOGITS], n, runner->config->n_vocab,
                          device, err));
    MOE_TRY(fetch(runner, n, 0, err));
    MOE_TRY(ops->download(runner->device, host, device, n * sizeof *host, err));
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(host[i].share);
    }
    if (!(finite && selected_are_finite(runner, n))) {
        return moe_pass_fail_not_finite(runner, pass, err);
    }
    for (uint32_t i = 0; i < n && !*done; i++) {
        *done = !pass->on_greatest(pass->logit_rows[first + i], &host[i], pass->user);
    }
    return MOE_OK;
}

int moe_pass_hand_over(moe_runner *runner, const moe_pass *pass, uint32_t first, uint32_t n,
                       bool *done, moe_error *err)
{
    MOE_ASSERT(first + n <= pass->n_logit_rows && n <= MOE_LOGIT_ROWS);
    *done = false;
    return pass->on_greatest != NULL ? hand_over_greatest(runner, pass, first, n, done, err)
                                     : hand_over_logits(runner, pass, first, n, done, err);
}

static int output_logits(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    int status = MOE_OK;
    bool done = false;
    for (uint32_t first = 0; first < pass->n_logit_rows && status == MOE_OK && !done;) {
        uint32_t n = pass->n_logit_rows - first;
        n = n < MOE_LOGIT_ROWS ? n : MOE_LOGIT_ROWS;
        status = moe_pass_queue_logits(runner, pass->logit_rows + first, n, err);
        if (status == MOE_OK) {
            status = moe_pass_hand_over(runner, pass, first, n, &done, err);
        }
        first += n;
    }
    return status;
}

int moe_pass_finish(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    /* Rows without logits must be finite, too, because later rows will use their keys and values.
     */
    int status =
        pass->n_logit_rows < pass->n_rows ? moe_pass_check_hidden(runner, pass, err) : MOE_OK;
    return status != MOE_OK ? status : output_logits(runner, pass, err);
}

/* ---- Layers ---- */

void moe_pass_tell_refusal(const moe_runner *runner, const char *consequence,
                           const moe_error *reason)
{
    if (runner->log != NULL) {
        char text[MOE_ERROR_MESSAGE_SIZE + 64];
        snprintf(text, sizeof text, "%s: %s", consequence, reason->message);
        runner->log(text, runner->user);
    }
}

/* Replays the layer's front; records it first if there is no recording. */
static int play_front(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    moe_device *device = runner->device;
    moe_error reason = {""};
    bool played;
    int status = device->recording->play(device, layer, &played, err);
    if (status != MOE_OK || played) {
        return status;
    }
    status = device->recording->record(device, layer, &reason);
    if (status == MOE_OK) {
        status = moe_layer_front(runner, pass, layer, &reason);
        status = device->recording->record_end(device, status, &reason);
    }
    if (status == MOE_ERR_UNSUPPORTED) {
        runner->fronts_refused = true;
        moe_pass_tell_refusal(runner, "operations are launched one by one", &reason);
        return moe_layer_front(runner, pass, layer, err);
    }
    return status != MOE_OK ? moe_fail(err, status, "%s", reason.message) : MOE_OK;
}

/* Whether the operations before the layer's routing may be recorded. */
static bool has_recorded_front(const moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    const moe_recording_ops *recording = runner->device->recording;
    const moe_program_layer *l = &runner->program->layers[layer];
    return recording != NULL && !runner->fronts_refused && runner->states->state_bytes == 0 &&
           pass->panel == NULL && !moe_pass_chooses(runner->config, pass) &&
           moe_program_is_within(runner->program, (moe_span){l->first, l->rest},
                                 recording->forms) &&
           recording->takes_step(runner->device);
}

static bool is_tapped(const moe_runner *runner, const moe_pass *pass, uint32_t layer)
{
    bool is = false;
    for (uint32_t i = 0; i < MOE_MOST_TAPS && runner->taps != NULL; i++) {
        is = is || runner->taps->layers[i] == layer;
    }
    return is && pass->kind != MOE_PASS_DRAFT;
}

static int tap_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    const moe_layer_taps *taps = runner->taps;
    size_t bytes = (size_t)pass->n_rows * runner->config->n_embd * sizeof(float);
    for (uint32_t i = 0; i < MOE_MOST_TAPS; i++) {
        if (taps->layers[i] == layer) {
            MOE_TRY(runner->device->ops->copy(runner->device, taps->x[i],
                                              runner->buffers.values[MOE_VALUE_X], bytes, err));
        }
    }
    return MOE_OK;
}

int moe_pass_queue_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
        moe_expert_store_note_cancel(runner->experts);
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    MOE_TRY(is_tapped(runner, pass, layer) ? tap_layer(runner, pass, layer, err) : MOE_OK);
    MOE_TRY(has_recorded_front(runner, pass, layer) ? play_front(runner, pass, layer, err)
                                                    : moe_layer_front(runner, pass, layer, err));
    return moe_layer_rest(runner, pass, layer, err);
}

int moe_pass_queue_whole(moe_runner *runner, const moe_pass *pass, uint32_t first,
                         moe_serve_layer_fn serve, void *user, moe_error *err)
{
    const moe_program *program = runner->program;
    moe_run run = {
        .runner = runner, .pass = pass, .n_rows = pass->n_rows, .rows = pass->logit_rows};
    moe_span span = {.first = first > 0 ? program->layers[first].first : program->front.first};
    MOE_ASSERT(pass->n_logit_rows == pass->n_rows);
    for (uint32_t l = first; l < program->config->n_layer; l++) {
        const moe_program_layer *layer = &program->layers[l];
        if (is_tapped(runner, pass, l)) {
            span.end = layer->first;
            MOE_TRY(moe_program_run(&run, span, err));
            MOE_TRY(tap_layer(runner, pass, l, err));
            span.first = layer->first;
        }
        if (layer->rest < layer->end) {
            span.end = layer->rest;
            MOE_TRY(moe_program_run(&run, span, err));
            MOE_TRY(serve(user, runner, l, &run.mixed, err));
            span.first = layer->rest + 2; /* ROUTE and EXPERTS */
        }
    }
    span.end = program->back.end;
    return moe_program_run(&run, span, err);
}

int moe_pass_run_layers(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    moe_step_inputs inputs;
    MOE_ASSERT(pass->n_rows > 0 && pass->n_rows <= runner->buffers.max_rows);
    MOE_ASSERT(pass->n_logit_rows <= pass->n_rows);
    MOE_ASSERT(pass->n_logit_rows == 0 || pass->logit_rows[pass->n_logit_rows - 1] < pass->n_rows);
    int status = moe_pass_begin_step(runner, pass, &inputs, err);
    status = status == MOE_OK ? moe_program_front(runner, pass, err) : status;
    for (uint32_t layer = 0; layer < runner->config->n_layer && status == MOE_OK; layer++) {
        status = moe_pass_queue_layer(runner, pass, layer, err);
    }
    return moe_pass_end_step(runner, status, err);
}

/* ---- Passes ---- */

int moe_pass_run_draft(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    bool done;
    int status = moe_hooks_take_over(runner, pass, &done, err);
    if (status != MOE_OK || done) {
        return status;
    }
    status = moe_pass_run_layers(runner, pass, err);
    return status != MOE_OK ? status : output_logits(runner, pass, err);
}

/* Whether this pass counts in the trial of prefetching. Such passes prefetch only while that makes
 * them faster. Wide passes always prefetch. */
static bool is_tried(const moe_runner *runner, const moe_pass *pass)
{
    return runner->prefetch == MOE_PREFETCH_TRIED && pass->n_rows <= MOST_TRIED_ROWS;
}

/* Compares passes by their time for each expert, which depends little on their number of rows. */
static int run_counted_layers(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    bool tried = is_tried(runner, pass);
    runner->prefetches =
        tried ? moe_trial_gate_is_on(&runner->prefetch_gate) : runner->prefetch != MOE_PREFETCH_OFF;
    runner->n_pass_experts = 0;
    uint64_t waited = tried ? moe_expert_store_wait_ns(runner->experts) : 0;
    uint64_t moved = tried ? moe_expert_store_bytes_moved(runner->experts) : 0;
    uint64_t begin = moe_now_ns();
    if (runner->prefetch != MOE_PREFETCH_OFF) {
        moe_request_by_table(runner, pass);
    }
    MOE_TRY(moe_pass_run_layers(runner, pass, err));
    if (tried && runner->n_pass_experts > 0) {
        const moe_trial_pass noted = {
            .work = (double)runner->n_pass_experts,
            .time_ns = (double)(moe_now_ns() - begin),
            .busy_ns = (double)(moe_expert_store_wait_ns(runner->experts) - waited),
            .bytes = (double)(moe_expert_store_bytes_moved(runner->experts) - moved)};
        moe_trial_gate_note(&runner->prefetch_gate, &noted);
    }
    return MOE_OK;
}

/* Queues the layers of the part. part->begun: the front of the first layer has been computed; only
 * its operations from `mixed` on are queued (moe_layer_network()). */
static int queue_part(moe_runner *runner, const moe_pass *pass, const moe_pass_part *part,
                      moe_error *err)
{
    uint32_t l = part->first;
    if (part->begun) {
        MOE_TRY(moe_layer_network(runner, pass, l++, err));
    }
    for (; l < part->end; l++) {
        MOE_TRY(moe_pass_queue_layer(runner, pass, l, err));
    }
    return MOE_OK;
}

int moe_pass_resume(moe_runner *runner, const moe_pass *pass, const moe_pass_part *part,
                    moe_error *err)
{
    MOE_ASSERT(!part->begun || moe_layer_has_experts(runner->config, part->first));
    MOE_ASSERT(part->first < part->end && part->end <= runner->config->n_layer);
    moe_step_inputs inputs;
    runner->prefetches = is_tried(runner, pass) ? moe_trial_gate_is_on(&runner->prefetch_gate)
                                                : runner->prefetch != MOE_PREFETCH_OFF;
    int status = moe_pass_begin_step(runner, pass, &inputs, err);
    if (status == MOE_OK) {
        status = queue_part(runner, pass, part, err);
    }
    status = moe_pass_end_step(runner, status, err);
    return status != MOE_OK || part->end < runner->config->n_layer
               ? status
               : output_logits(runner, pass, err);
}

int moe_pass_run(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    MOE_ASSERT(pass->kind != MOE_PASS_DRAFT);
    bool done;
    int status = moe_hooks_take_over(runner, pass, &done, err);
    if (status == MOE_OK && !done) {
        status = moe_hooks_before_pass(runner, pass, err);
    }
    if (status == MOE_OK && !done) {
        status = run_counted_layers(runner, pass, err);
    }
    if (status == MOE_OK && !done) {
        status = moe_pass_finish(runner, pass, err);
    }
    if (status == MOE_OK) {
        status = moe_hooks_after_pass(runner, pass, err);
        moe_expert_store_end_pass(runner->experts, runner->n_passes++);
    }
    return status;
}
