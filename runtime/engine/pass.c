/* SPDX-License-Identifier: MIT */
/* tokens -> embedding -> [attention block -> feed-forward block] x n_layer -> norm -> head.
 *
 * Where the device records operations, a pass of one row is played as a whole (recorded_pass.h), or
 * of a few rows the front of each layer, which is what comes before the host has to know its
 * routing. */
#include "runtime/engine/pass.h"

#include <math.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"
#include "runtime/engine/finite.h"

#define MOST_TRIED_ROWS 64u

/* Angles are computed in double: positions run to millions, and a rounded product would turn far
 * positions by visible angles. */
static void fill_rope_tables(const moe_engine *engine, const moe_pass *pass)
{
    const moe_model_config *c = &engine->config;
    uint32_t n = c->n_rot / 2;
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            double angle = (double)pass->kv_rows[r].position * engine->rope_frequencies[i];
            engine->buffers.rope_cos[(size_t)r * n + i] = (float)(cos(angle) * c->yarn_magnitude);
            engine->buffers.rope_sin[(size_t)r * n + i] = (float)(sin(angle) * c->yarn_magnitude);
        }
    }
}

int moe_pass_queue_logits(moe_engine *engine, const uint32_t *rows, uint32_t n, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    moe_pass_buffers *b = &engine->buffers;
    moe_device *device = engine->device;
    const moe_device_ops *ops = device->ops;
    bool together = rows[n - 1] - rows[0] == n - 1;
    const float *x = together ? b->x + (size_t)rows[0] * c->n_embd : b->selected;
    int status =
        together ? MOE_OK : ops->gather(device, b->x, c->n_embd, rows, n, b->selected, err);
    if (status == MOE_OK) {
        status = ops->rms_norm(device, x, engine->weights.output_norm.data, b->selected, n,
                               c->n_embd, c->n_embd, c->norm_eps, err);
    }
    if (status == MOE_OK) {
        moe_linear head = {.weight = engine->weights.output, .out = b->logits};
        status = ops->linear(device, b->selected, n, c->n_embd, &head, 1, err);
    }
    size_t n_logits = (size_t)n * c->n_vocab;
    if (status == MOE_OK && c->logit_scale != 1.0f) {
        status = ops->scale(device, c->logit_scale, b->logits, n_logits, err);
    }
    return status;
}

/* The normed hidden states that the logits are made of come back beside them: a product with
 * quantised weights may hide what is wrong with those. */
static int fetch_selected(moe_engine *engine, uint32_t n, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    return engine->device->ops->download_later(engine->device, b->selected_host, b->selected,
                                               (size_t)n * engine->config.n_embd * sizeof(float),
                                               err);
}

static bool selected_are_finite(const moe_engine *engine, uint32_t n)
{
    return moe_all_finite(engine->buffers.selected_host, (size_t)n * engine->config.n_embd);
}

static int hand_over_logits(moe_engine *engine, const moe_pass *pass, uint32_t first, uint32_t n,
                            bool *done, moe_error *err)
{
    moe_pass_buffers *b = &engine->buffers;
    size_t n_vocab = engine->config.n_vocab;
    int status = fetch_selected(engine, n, err);
    if (status == MOE_OK) {
        status = engine->device->ops->download(engine->device, b->logits_host, b->logits,
                                               n * n_vocab * sizeof(float), err);
    }
    if (status == MOE_OK &&
        !(selected_are_finite(engine, n) && moe_all_finite(b->logits_host, n * n_vocab))) {
        return moe_pass_fail_not_finite(engine, pass, err);
    }
    for (uint32_t i = 0; i < n && status == MOE_OK && !*done; i++) {
        *done =
            !pass->on_logits(pass->logit_rows[first + i], b->logits_host + i * n_vocab, pass->user);
    }
    return status;
}

static int hand_over_greatest(moe_engine *engine, const moe_pass *pass, uint32_t first, uint32_t n,
                              bool *done, moe_error *err)
{
    moe_greatest host[MOE_LOGIT_ROWS];
    moe_pass_buffers *b = &engine->buffers;
    const moe_device_ops *ops = engine->device->ops;
    moe_greatest *device = (moe_greatest *)b->greatest;
    bool finite = true;
    int status = ops->greatest(engine->device, b->logits, n, engine->config.n_vocab, device, err);
    status = status == MOE_OK ? fetch_selected(engine, n, err) : status;
    if (status == MOE_OK) {
        status = ops->download(engine->device, host, device, n * sizeof *host, err);
    }
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        finite = finite && isfinite(host[i].share);
    }
    if (status == MOE_OK && !(finite && selected_are_finite(engine, n))) {
        return moe_pass_fail_not_finite(engine, pass, err);
    }
    for (uint32_t i = 0; i < n && status == MOE_OK && !*done; i++) {
        *done = !pass->on_greatest(pass->logit_rows[first + i], &host[i], pass->user);
    }
    return status;
}

int moe_pass_hand_over(moe_engine *engine, const moe_pass *pass, uint32_t first, uint32_t n,
                       bool *done, moe_error *err)
{
    *done = false;
    return pass->on_greatest != NULL ? hand_over_greatest(engine, pass, first, n, done, err)
                                     : hand_over_logits(engine, pass, first, n, done, err);
}

static int output_logits(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    int status = MOE_OK;
    bool done = false;
    for (uint32_t first = 0; first < pass->n_logit_rows && status == MOE_OK && !done;) {
        uint32_t n = pass->n_logit_rows - first;
        n = n < MOE_LOGIT_ROWS ? n : MOE_LOGIT_ROWS;
        status = moe_pass_queue_logits(engine, pass->logit_rows + first, n, err);
        if (status == MOE_OK) {
            status = moe_pass_hand_over(engine, pass, first, n, &done, err);
        }
        first += n;
    }
    return status;
}

/* ---- Layers ---- */

void moe_pass_tell_refusal(const moe_engine *engine, const char *consequence,
                           const moe_error *reason)
{
    if (engine->log != NULL) {
        char text[MOE_ERROR_MESSAGE_SIZE + 64];
        snprintf(text, sizeof text, "%s: %s", consequence, reason->message);
        engine->log(text, engine->user);
    }
}

/* What precedes the layer's routing. */
static int run_front(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    int status = moe_attention_block(engine, pass, layer, err);
    return status != MOE_OK ? status : moe_feed_forward_begin(engine, pass, layer, err);
}

/* Played, or recorded where it has not been. */
static int play_front(moe_engine *engine, const moe_pass *pass, uint32_t layer, moe_error *err)
{
    moe_device *device = engine->device;
    moe_error reason = {""};
    bool played;
    int status = device->recording->play(device, layer, &played, err);
    if (status != MOE_OK || played) {
        return status;
    }
    status = device->recording->record(device, layer, &reason);
    if (status == MOE_OK) {
        status = run_front(engine, pass, layer, &reason);
        status = device->recording->record_end(device, status, &reason);
    }
    if (status == MOE_ERR_UNSUPPORTED) {
        engine->fronts_refused = true;
        moe_pass_tell_refusal(engine, "operations are launched one by one", &reason);
        return run_front(engine, pass, layer, err);
    }
    return status != MOE_OK ? moe_fail(err, status, "%s", reason.message) : MOE_OK;
}

static bool has_recorded_fronts(const moe_engine *engine, const moe_pass *pass)
{
    const moe_recording_ops *recording = engine->device->recording;
    bool has = recording != NULL && !engine->fronts_refused &&
               pass->n_rows <= recording->max_rows && pass->recorded == NULL;
    for (uint32_t r = 0; has && r < pass->n_rows; r++) {
        has = pass->kv_rows[r].path == NULL && pass->kv_rows[r].pages == pass->kv_rows[0].pages;
    }
    return has;
}

int moe_pass_begin_step(moe_engine *engine, const moe_pass *pass, moe_step_inputs *inputs,
                        moe_error *err)
{
    fill_rope_tables(engine, pass);
    *inputs = (moe_step_inputs){.tokens = pass->tokens,
                                .rows = pass->kv_rows,
                                .cos = engine->buffers.rope_cos,
                                .sin = engine->buffers.rope_sin,
                                .n_rows = pass->n_rows,
                                .n_rot = engine->config.n_rot};
    return engine->device->ops->begin_step(engine->device, inputs, err);
}

int moe_pass_end_step(moe_engine *engine, int status, moe_error *err)
{
    int ended =
        engine->device->ops->begin_step(engine->device, NULL, status == MOE_OK ? err : NULL);
    return status != MOE_OK ? status : ended;
}

int moe_pass_queue_layers(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    const moe_model_config *c = &engine->config;
    const moe_device_ops *ops = engine->device->ops;
    int status = ops->embed(engine->device, &engine->weights.token_embedding, pass->tokens,
                            pass->n_rows, c->embedding_scale, engine->buffers.x, err);
    for (uint32_t layer = 0; layer < c->n_layer && status == MOE_OK; layer++) {
        if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
            return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        }
        status = has_recorded_fronts(engine, pass) ? play_front(engine, pass, layer, err)
                                                   : run_front(engine, pass, layer, err);
        if (status == MOE_OK) {
            status = moe_feed_forward_end(engine, pass, layer, err);
        }
    }
    return status;
}

int moe_pass_run_layers(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    moe_step_inputs inputs;
    int status = moe_pass_begin_step(engine, pass, &inputs, err);
    if (status == MOE_OK) {
        status = moe_pass_queue_layers(engine, pass, err);
    }
    return moe_pass_end_step(engine, status, err);
}

/* ---- Passes ---- */

int moe_pass_run_draft(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    bool done;
    int status = moe_recorded_pass_run(engine, MOE_RECORDED_DRAFT, pass, &done, err);
    if (status != MOE_OK || done) {
        return status;
    }
    status = moe_pass_run_layers(engine, pass, err);
    return status != MOE_OK ? status : output_logits(engine, pass, err);
}

/* Passes that read ahead by prediction only while that is the faster way; wide ones always. */
static bool is_tried(const moe_engine *engine, const moe_pass *pass)
{
    return engine->prefetch == MOE_PREFETCH_TRIED && pass->n_rows <= MOST_TRIED_ROWS;
}

/* Passes are compared by their time for an expert, which widths change little. */
static int run_counted_layers(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    bool tried = is_tried(engine, pass);
    engine->prefetches =
        tried ? moe_trial_gate_is_on(&engine->prefetch_gate) : engine->prefetch != MOE_PREFETCH_OFF;
    engine->n_pass_experts = 0;
    uint64_t waited = tried ? moe_expert_store_wait_ns(engine->experts) : 0;
    uint64_t begin = moe_now_ns();
    int status = moe_pass_run_layers(engine, pass, err);
    if (tried && status == MOE_OK && engine->n_pass_experts > 0) {
        double ns = (double)(moe_now_ns() - begin);
        moe_trial_gate_note(&engine->prefetch_gate, (double)engine->n_pass_experts, ns,
                            (double)(moe_expert_store_wait_ns(engine->experts) - waited));
    }
    return status;
}

int moe_pass_run(moe_engine *engine, const moe_pass *pass, moe_error *err)
{
    bool done = false;
    moe_recorded_kind kind = pass->kind == MOE_PASS_LOSSY ? MOE_RECORDED_LOSSY : MOE_RECORDED_EXACT;
    int status = moe_recorded_pass_run(engine, kind, pass, &done, err);
    if (status == MOE_OK && engine->oracle != NULL) {
        status = moe_overlap_record(engine, pass, err);
    }
    if (status == MOE_OK && !done) {
        status = run_counted_layers(engine, pass, err);
    }
    /* Rows without logits leave keys and values behind, for rows to come. */
    if (status == MOE_OK && !done && pass->n_logit_rows < pass->n_rows) {
        status = moe_pass_check_hidden(engine, pass, err);
    }
    if (status == MOE_OK && !done) {
        status = output_logits(engine, pass, err);
    }
    if (status == MOE_OK) {
        status = moe_observe_pass_end(engine, err);
        moe_expert_store_end_pass(engine->experts, engine->n_passes++);
    }
    return status;
}
