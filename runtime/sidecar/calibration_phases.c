/* SPDX-License-Identifier: MIT */
#include "runtime/sidecar/calibration_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "cpu/gram.h"
#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/pass/runner.h"
#include "runtime/sidecar/calibration_work.h"
#include "runtime/sidecar/low_bit_file.h"

#define WINDOW          512u
#define DEFAULT_SAMPLES 64u
/* The most memory for the outputs of all experts on a layer's samples. If they would take more,
 * fewer samples are used. */
#define MAX_OUTPUT_BYTES (128u << 20)

static uint32_t window_of(const moe_calibration_parts *parts)
{
    return parts->context < WINDOW ? parts->context : WINDOW;
}

/* ---- The text ---- */

static void take_samples(moe_calibration_run *run, const moe_route_event *event)
{
    moe_calibration_state *s = run->state;
    size_t n_embd = s->shape.n_embd;
    for (uint32_t r = 0; r < event->n_rows; r++) {
        uint32_t at = moe_calibration_sample_of(s, run->window_begin + event->rows[r].position);
        if (at != UINT32_MAX) {
            memcpy(s->samples + ((size_t)event->layer * s->n_samples + at) * n_embd,
                   run->hidden + r * n_embd, n_embd * sizeof(float));
        }
    }
}

static int on_route(void *context, const moe_route_event *event, moe_error *err)
{
    moe_calibration_run *run = context;
    moe_calibration_state *s = run->state;
    moe_device *device = run->parts.runner->device;
    size_t n_embd = s->shape.n_embd;
    for (uint32_t r = 0; r < event->n_rows; r++) {
        moe_calibration_count(s, event->layer, event->experts + (size_t)r * event->n_used,
                              event->probs + (size_t)r * event->n_expert);
    }
    MOE_TRY(device->ops->download(device, run->hidden, event->hidden,
                                  event->n_rows * n_embd * sizeof(float), err));
    take_samples(run, event);
    if (s->gram != NULL) {
        moe_gram_add_columns(&run->blas, run->hidden, event->n_rows, (uint32_t)n_embd,
                             s->gram + event->layer * n_embd * n_embd);
    }
    return MOE_OK;
}

const int32_t *moe_calibration_run_next_window(moe_calibration_run *run, uint32_t *n)
{
    const moe_calibration_state *s = run->state;
    uint64_t left = s->n_tokens - s->n_done;
    uint32_t window = window_of(&run->parts);
    *n = left < window ? (uint32_t)left : window;
    run->window_begin = s->n_done;
    run->is_spoilt = *n > 0; /* until the whole window has been counted */
    return run->tokens + run->window_begin;
}

int moe_calibration_run_counted(moe_calibration_run *run, uint32_t n, moe_error *err)
{
    moe_calibration_state *s = run->state;
    run->is_spoilt = false;
    s->n_done += n;
    double fraction = (double)s->n_done / (double)s->n_tokens;
    return moe_calibration_checkpoint(run, MOE_CALIBRATE_TEXT, fraction, err);
}

moe_wait_cancel moe_calibration_run_cancel(moe_calibration_run *run)
{
    return (moe_wait_cancel){moe_calibration_is_cancelled, run};
}

/* ---- The steps of a calibration ---- */

static int check_options(const moe_sidecar_model *model, const moe_calibrate_options *o,
                         moe_error *err)
{
    if (o->n_tokens == 0 || o->tokens == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "calibrate options: no tokens");
    }
    for (uint64_t i = 0; i < o->n_tokens; i++) {
        if (o->tokens[i] < 0 || (uint32_t)o->tokens[i] >= model->config->n_vocab) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "token %d is outside the vocabulary of %u",
                            o->tokens[i], model->config->n_vocab);
        }
    }
    moe_dtype type;
    return o->low_bit_type != NULL ? moe_low_bit_type(o->low_bit_type, &type, err) : MOE_OK;
}

static moe_calibration_state settings_of(const moe_calibration_parts *parts,
                                         const moe_calibrate_options *o)
{
    moe_calibration_state s = {
        .shape = moe_sidecar_shape(&parts->model), .n_tokens = o->n_tokens, .with_gram = o->gram};
    uint64_t per_token = (uint64_t)s.shape.n_expert * s.shape.n_embd * sizeof(float);
    uint64_t n = o->n_output_tokens != 0 ? o->n_output_tokens : DEFAULT_SAMPLES;
    n = n < MAX_OUTPUT_BYTES / per_token ? n : MAX_OUTPUT_BYTES / per_token;
    n = n < o->n_tokens ? n : o->n_tokens;
    n = n < parts->prefill_chunk ? n : parts->prefill_chunk;
    s.n_samples = n > 0 ? (uint32_t)n : 1;
    uint64_t window = window_of(parts);
    const uint64_t settings[] = {s.shape.fingerprint, window, parts->prefill_chunk, s.n_samples};
    s.key = XXH3_64bits_withSeed(o->tokens, o->n_tokens * sizeof *o->tokens,
                                 XXH3_64bits(settings, sizeof settings));
    return s;
}

static int prepare(moe_calibration_run *run, moe_error *err)
{
    const moe_calibrate_options *o = run->options;
    const char *model = moe_gguf_file_at(run->parts.model.gguf, 0)->path;
    moe_calibration_state settings = settings_of(&run->parts, o);
    run->path = o->path != NULL ? moe_strdup(o->path) : moe_calibration_default_path(model);
    run->hidden = moe_calloc_aligned((size_t)run->parts.prefill_chunk * settings.shape.n_embd,
                                     sizeof *run->hidden);
    run->tokens = moe_calloc(o->n_tokens, sizeof *run->tokens);
    size_t size = run->path != NULL ? strlen(run->path) + sizeof ".partial" : 1;
    run->partial = moe_calloc(size, 1);
    if (run->path == NULL || run->hidden == NULL || run->tokens == NULL || run->partial == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to calibrate");
    }
    memcpy(run->tokens, o->tokens, o->n_tokens * sizeof *run->tokens);
    snprintf(run->partial, size, "%s.partial", run->path);
    MOE_TRY(moe_calibration_state_create(&run->state, &settings, err));
    (void)moe_calibration_state_resume(run->state, run->partial);
    return MOE_OK;
}

static int open_reader(moe_calibration_run *run, moe_error *err)
{
    run->weights.map = run->parts.model.map;
    moe_matmul_kernels_init(&run->weights.kernels, moe_cpu_features());
    int status = moe_blas_load(&run->blas, err);
    run->weights.blas = run->blas;
    if (status != MOE_OK) {
        return status;
    }
    moe_model_reader_options options = *run->parts.model.reading;
    options.is_cancelled = moe_calibration_is_cancelled;
    options.cancel_user = run;
    return moe_model_reader_open(&run->weights.files, &options, err);
}

static int observe(moe_calibration_run *run, moe_error *err)
{
    run->observer = (moe_route_observer){.wants_probs = true, .on_route = on_route, .context = run};
    int status = moe_runner_attach_observer(run->parts.runner, &run->observer, err);
    run->observes = status == MOE_OK;
    return status;
}

static void stop_observing(moe_calibration_run *run)
{
    if (run->observes) {
        moe_runner_detach_observer(run->parts.runner, &run->observer);
    }
    run->observes = false;
}

int moe_calibration_run_open(moe_calibration_run **out, const moe_calibration_parts *parts,
                             const moe_calibrate_options *options, moe_error *err)
{
    *out = NULL;
    int status = check_options(&parts->model, options, err);
    moe_calibration_run *run = status == MOE_OK ? moe_calloc(1, sizeof *run) : NULL;
    if (run == NULL) {
        return status != MOE_OK ? status : moe_fail(err, MOE_ERR_MEMORY, "no memory to calibrate");
    }
    *out = run;
    run->parts = *parts;
    run->options = options;
    run->saved_ns = moe_now_ns();
    status = open_reader(run, err);
    if (status == MOE_OK) {
        status = prepare(run, err);
    }
    return status != MOE_OK ? status : observe(run, err);
}

/* Copies the experts in fewer bits. */
static int write_low_bit(moe_calibration_run *run, moe_error *err)
{
    moe_low_bit_job job = {.model = &run->parts.model,
                           .weights = &run->weights,
                           .team = run->parts.team,
                           .book = run->parts.model.book,
                           .is_cancelled = moe_calibration_is_cancelled,
                           .user = run};
    int status = moe_low_bit_type(run->options->low_bit_type, &job.type, err);
    char *path = moe_low_bit_path(run->path);
    if (status == MOE_OK && path == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory to copy experts");
    }
    status = status == MOE_OK ? moe_low_bit_write(&job, path, err) : status;
    free(path);
    return status;
}

int moe_calibration_run_finish(moe_calibration_run *run, moe_error *err)
{
    stop_observing(run);
    MOE_TRY(moe_calibration_compare_outputs(run, err));
    MOE_TRY(moe_calibration_compare_weights(run, err));
    MOE_TRY(moe_calibration_write_sidecar(run, err));
    return run->options->low_bit_type != NULL ? write_low_bit(run, err) : MOE_OK;
}

/* Ends a phase. If the calibration was stopped, saves the work done so far. */
static int end(moe_calibration_run *run, int status, moe_error *err)
{
    if (status == MOE_ERR_CANCELLED && run->state != NULL) {
        int saved = run->is_spoilt ? MOE_OK : moe_calibration_save_partial(run, err);
        return saved != MOE_OK
                   ? saved
                   : moe_fail(err, status, "the calibration was stopped; the same command goes on");
    }
    if (status == MOE_OK) {
        run->progress = 1.0;
        run->asked_ns = 0;
        (void)moe_calibration_is_cancelled(run); /* the last progress report */
        (void)unlink(run->partial);
    }
    return status;
}

int moe_calibration_run_close(moe_calibration_run **out, int status, moe_error *err)
{
    moe_calibration_run *run = *out;
    if (run == NULL) {
        return status;
    }
    stop_observing(run);
    status = end(run, status, err);
    moe_model_reader_close(&run->weights.files);
    moe_calibration_state_free(&run->state);
    free(run->hidden);
    free(run->tokens);
    free(run->path);
    free(run->partial);
    free(run);
    *out = NULL;
    return status;
}
