/* SPDX-License-Identifier: MIT */
/* Calibration in three phases, each of which can be interrupted and continued:
 *
 *  the text, in windows   -> counts, co-activation, entropies, samples of hidden rows, Gram
 *  every expert on the samples of its layer   -> distances of outputs
 *  the file, layer by layer                   -> distances of weights, checksums
 *
 * Then the sidecar is written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <moe/calibrate.h>

#include "cpu/gram.h"
#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/sidecar/affinity.h"
#include "runtime/sidecar/calibration_state.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/model_parts.h"
#include "runtime/pass/expert_form.h"

#define WINDOW                  512u
#define DEFAULT_SAMPLES         64u
#define DEFAULT_SAVE_INTERVAL_S 30.0
#define ASK_NS                  50000000u /* between two calls of is_cancelled during a wait */
/* Outputs of all experts on the samples of a layer take at most this; otherwise fewer samples are
 * used. */
#define MAX_OUTPUT_BYTES (128u << 20)

/* Shares of the work, for the progress report. */
static const double phase_begin[] = {0.0, 0.6, 0.8, 0.95};

typedef struct calibration_run {
    moe_engine *engine;
    const moe_calibrate_options *options;
    moe_calibration_state *state;
    moe_route_observer observer;
    moe_blas blas;
    uint64_t window_begin; /* the token at position 0 of the session */
    float *hidden;         /* [max_rows][n_embd] */
    int32_t *tokens;
    char *path;
    char *partial;
    uint64_t saved_ns;
    double progress;   /* last reported */
    uint64_t asked_ns; /* ... then */
    bool spoilt;       /* the state must not be saved */
} calibration_run;

void moe_calibrate_options_init_sized(moe_calibrate_options *options, size_t struct_size)
{
    const moe_calibrate_options defaults = {.struct_size = sizeof defaults};
    moe_struct_init(&moe_kind_calibrate_options, options, struct_size, &defaults);
}

static int save_partial(calibration_run *run, moe_error *err)
{
    int status = moe_calibration_state_save(run->state, run->partial, err);
    run->saved_ns = moe_now_ns();
    return status;
}

/* Also called during waits for bytes of the file. */
static bool is_cancelled(void *user)
{
    calibration_run *run = user;
    const moe_calibrate_options *o = run->options;
    uint64_t now = moe_now_ns();
    if (now - run->asked_ns < ASK_NS) {
        return false;
    }
    run->asked_ns = now;
    return o->progress != NULL && !o->progress(run->progress, o->user);
}

/* Between two pieces of work: reports progress, and saves when it is time. */
static int checkpoint(calibration_run *run, int phase, double fraction, moe_error *err)
{
    const moe_calibrate_options *o = run->options;
    double begin = phase_begin[phase];
    double total = begin + fraction * (phase_begin[phase + 1] - begin);
    run->progress = total;
    run->asked_ns = 0;
    if (is_cancelled(run)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "cancelled");
    }
    double interval_s = o->save_interval_s > 0.0 ? o->save_interval_s : DEFAULT_SAVE_INTERVAL_S;
    bool is_time = (double)(moe_now_ns() - run->saved_ns) * 1e-9 >= interval_s;
    return is_time ? save_partial(run, err) : MOE_OK;
}

/* ---- The text ---- */

static void take_samples(calibration_run *run, const moe_route_event *event)
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
    calibration_run *run = context;
    moe_calibration_state *s = run->state;
    moe_device *device = run->engine->device;
    size_t n_embd = s->shape.n_embd;
    for (uint32_t r = 0; r < event->n_rows; r++) {
        moe_calibration_count(s, event->layer, event->experts + (size_t)r * event->n_used,
                              event->probs + (size_t)r * event->n_expert);
    }
    int status = device->ops->download(device, run->hidden, event->hidden,
                                       event->n_rows * n_embd * sizeof(float), err);
    if (status != MOE_OK) {
        return status;
    }
    take_samples(run, event);
    if (s->gram != NULL) {
        moe_gram_add_columns(&run->blas, run->hidden, event->n_rows, (uint32_t)n_embd,
                             s->gram + event->layer * n_embd * n_embd);
    }
    return MOE_OK;
}

static int run_window(calibration_run *run, uint32_t n, moe_error *err)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session = NULL;
    int status = moe_session_create(&session, run->engine, &options, err);
    if (status == MOE_OK) {
        status = moe_session_feed(session, run->tokens + run->window_begin, n, err);
    }
    while (status == MOE_OK && moe_session_n_pending(session) > 0) {
        status = moe_step(run->engine, &session, 1, err);
    }
    moe_session_close(&session);
    return status;
}

/* A window that fails leaves the state spoilt: it is not saved after that. */
static int count_text(calibration_run *run, moe_error *err)
{
    moe_calibration_state *s = run->state;
    int status = moe_runner_attach_observer(&run->engine->runner, &run->observer, err);
    if (status != MOE_OK) {
        return status;
    }
    run->engine->cancel = (moe_wait_cancel){is_cancelled, run};
    uint32_t window = run->engine->context < WINDOW ? run->engine->context : WINDOW;
    while (s->n_done < s->n_tokens && status == MOE_OK) {
        uint64_t left = s->n_tokens - s->n_done;
        uint32_t n = left < window ? (uint32_t)left : window;
        run->window_begin = s->n_done;
        run->spoilt = true; /* until the whole window has been counted */
        status = run_window(run, n, err);
        if (status == MOE_OK) {
            run->spoilt = false;
            s->n_done += n;
            status = checkpoint(run, 0, (double)s->n_done / (double)s->n_tokens, err);
        }
    }
    run->engine->cancel = (moe_wait_cancel){NULL, NULL};
    moe_runner_detach_observer(&run->engine->runner, &run->observer);
    return status;
}

/* ---- Outputs ---- */

/* Runs one expert on the rows in buffers->norm, into rank_out. */
static int run_expert(calibration_run *run, uint32_t layer, uint32_t expert,
                      const moe_expert_view *view, float *out, moe_error *err)
{
    moe_pass_buffers *b = &run->engine->runner.buffers;
    moe_device *device = run->engine->device;
    uint32_t n = run->state->n_samples;
    uint32_t n_embd = run->state->shape.n_embd;
    moe_expert_work work = moe_expert_work_of(&run->engine->runner, layer, expert, view);
    work.n_rows = n;
    int status =
        device->ops->experts(device, b->norm, n, n_embd, &work, 1, b->rank_out, n_embd, err);
    return status != MOE_OK ? status
                            : device->ops->download(device, out, b->rank_out,
                                                    (size_t)n * n_embd * sizeof(float), err);
}

/* Runs every expert of the layer, as the store delivers them; outputs:
 * [n_expert][n_samples][n_embd]. */
static int run_all_experts(calibration_run *run, uint32_t layer, float *outputs, moe_error *err)
{
    moe_engine *engine = run->engine;
    moe_pass_buffers *b = &engine->runner.buffers;
    uint32_t n_expert = run->state->shape.n_expert;
    size_t stride = (size_t)run->state->n_samples * run->state->shape.n_embd;
    moe_layer_plan *plan = &b->plan;
    for (uint32_t e = 0; e < n_expert; e++) {
        plan->experts[e] = e;
        b->n_rows_of[e] = run->state->n_samples;
        b->gates[e] = 0.0f;
    }
    moe_layer_request request = {.layer = layer,
                                 .pass = engine->runner.n_passes,
                                 .experts = plan->experts,
                                 .n_rows = b->n_rows_of,
                                 .gates = b->gates,
                                 .n = n_expert,
                                 .cancel = {is_cancelled, run}};
    int status = moe_expert_store_begin(engine->runner.experts, &request, err);
    for (uint32_t n = 1; status == MOE_OK && n > 0;) {
        status = moe_expert_store_next(engine->runner.experts, b->positions, b->views, &n, err);
        for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
            status = run_expert(run, layer, plan->experts[b->positions[i]], &b->views[i],
                                outputs + b->positions[i] * stride, err);
        }
    }
    if (status != MOE_OK) {
        moe_expert_store_abandon(engine->runner.experts);
    }
    return status;
}

static int compare_layer_outputs(calibration_run *run, uint32_t layer, float *outputs,
                                 double *distances, moe_error *err)
{
    moe_calibration_state *s = run->state;
    moe_device *device = run->engine->device;
    size_t pairs = (size_t)s->shape.n_expert * s->shape.n_expert;
    size_t n = (size_t)s->n_samples * s->shape.n_embd;
    int status = MOE_OK;
    memset(distances, 0, pairs * sizeof *distances);
    if (moe_layer_has_experts(&run->engine->config, layer)) {
        status = device->ops->upload(device, run->engine->runner.buffers.norm,
                                     s->samples + layer * n, n * sizeof(float), err);
        if (status == MOE_OK) {
            status = run_all_experts(run, layer, outputs, err);
        }
        moe_affinity_of_outputs(outputs, s->shape.n_expert, s->n_samples, s->shape.n_embd,
                                distances);
    }
    return status != MOE_OK ? status
                            : moe_affinity_rank(distances, s->shape.n_expert,
                                                s->affinity_output + layer * pairs, err);
}

static int compare_outputs(calibration_run *run, moe_error *err)
{
    moe_calibration_state *s = run->state;
    size_t n = (size_t)s->shape.n_expert * s->n_samples * s->shape.n_embd;
    float *outputs = moe_calloc_aligned(n, sizeof *outputs);
    double *distances =
        moe_calloc((size_t)s->shape.n_expert * s->shape.n_expert, sizeof *distances);
    int status = MOE_OK;
    if (outputs == NULL || distances == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for the outputs of all experts");
    }
    while (s->n_layers_output < s->shape.n_layer && status == MOE_OK) {
        status = compare_layer_outputs(run, s->n_layers_output, outputs, distances, err);
        if (status == MOE_OK) {
            s->n_layers_output++;
            status = checkpoint(run, 1, (double)s->n_layers_output / (double)s->shape.n_layer, err);
        }
    }
    moe_expert_store_end_pass(run->engine->runner.experts, run->engine->runner.n_passes++);
    free(outputs);
    free(distances);
    return status;
}

/* ---- Weights ---- */

/* A layer without experts has nothing to compare: its rows are in the order of the numbers. */
static int rank_nothing(const moe_calibration_state *s, uint16_t *order, moe_error *err)
{
    size_t pairs = (size_t)s->shape.n_expert * s->shape.n_expert;
    double *distances = moe_calloc(pairs, sizeof *distances);
    int status = distances == NULL ? moe_fail(err, MOE_ERR_MEMORY, "no memory to rank experts")
                                   : moe_affinity_rank(distances, s->shape.n_expert, order, err);
    free(distances);
    return status;
}

static int compare_weights(calibration_run *run, const moe_weight_reader *reader, moe_error *err)
{
    moe_calibration_state *s = run->state;
    size_t n = s->shape.n_expert;
    int status = MOE_OK;
    while (s->n_layers_weight < s->shape.n_layer && status == MOE_OK) {
        size_t layer = s->n_layers_weight;
        uint16_t *order = s->affinity_weight + layer * n * n;
        status = moe_layer_has_experts(&run->engine->config, s->n_layers_weight)
                     ? moe_affinity_of_weights(reader, s->n_layers_weight, order,
                                               s->checksums + layer * n * MOE_EXPERT_PARTS, err)
                     : rank_nothing(s, order, err);
        if (status == MOE_OK) {
            s->n_layers_weight++;
            status = checkpoint(run, 2, (double)s->n_layers_weight / (double)s->shape.n_layer, err);
        }
    }
    return status;
}

/* Adds the checksums that can later show damage to the model. */
static int add_integrity(calibration_run *run, moe_model_reader *reader, moe_calibration *tables,
                         moe_error *err)
{
    const moe_engine *engine = run->engine;
    const moe_model_identity *identity = &engine->identity;
    uint32_t n = (uint32_t)moe_gguf_n_tensors(engine->gguf);
    int status = moe_calibration_make_tensors(tables, n, err);
    tables->header = identity->header;
    tables->n_samples = identity->n_samples;
    memcpy(tables->samples, identity->samples, sizeof tables->samples);
    return status != MOE_OK ? status
                            : moe_model_checksums(reader, engine->gguf, &engine->map,
                                                  tables->tensor_checksums, err);
}

static int write_sidecar(calibration_run *run, const moe_weight_reader *reader, moe_error *err)
{
    const moe_calibration_state *s = run->state;
    size_t pairs = (size_t)s->shape.n_expert * s->shape.n_expert;
    const char *name = run->options->text_name != NULL ? run->options->text_name : "";
    moe_calibration *tables = NULL;
    moe_calibration_extent extent = s->with_gram ? MOE_CALIBRATION_GRAM : MOE_CALIBRATION_TABLES;
    int status = moe_calibration_create(&tables, &s->shape, name, extent, err);
    if (status == MOE_OK) {
        status = moe_calibration_state_finish(s, tables, err);
    }
    for (uint32_t l = 0; l < s->shape.n_layer && status == MOE_OK; l++) {
        uint16_t *order = tables->affinity[MOE_AFFINITY_ROUTER] + l * pairs;
        status = moe_layer_has_experts(&run->engine->config, l)
                     ? moe_affinity_of_router(reader, l, order, err)
                     : rank_nothing(s, order, err);
    }
    if (status == MOE_OK) {
        status = add_integrity(run, reader->files, tables, err);
    }
    if (status == MOE_OK) {
        status = moe_calibration_save(tables, run->path, err);
    }
    moe_calibration_free(&tables);
    return status;
}

/* ---- The run ---- */

static int check_options(const moe_engine *engine, const moe_calibrate_options *o, moe_error *err)
{
    if (o->n_tokens == 0 || o->tokens == NULL) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "calibrate options: no tokens");
    }
    for (uint64_t i = 0; i < o->n_tokens; i++) {
        if (o->tokens[i] < 0 || (uint32_t)o->tokens[i] >= engine->config.n_vocab) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "token %d is outside the vocabulary of %u",
                            o->tokens[i], engine->config.n_vocab);
        }
    }
    return MOE_OK;
}

static moe_calibration_state settings_of(const moe_engine *engine, const moe_calibrate_options *o)
{
    moe_calibration_state s = {.shape = moe_engine_calibration_shape(engine),
                               .n_tokens = o->n_tokens,
                               .with_gram = o->gram};
    uint64_t per_token = (uint64_t)s.shape.n_expert * s.shape.n_embd * sizeof(float);
    uint64_t n = o->n_output_tokens != 0 ? o->n_output_tokens : DEFAULT_SAMPLES;
    n = n < MAX_OUTPUT_BYTES / per_token ? n : MAX_OUTPUT_BYTES / per_token;
    n = n < o->n_tokens ? n : o->n_tokens;
    n = n < engine->prefill_chunk ? n : engine->prefill_chunk;
    s.n_samples = n > 0 ? (uint32_t)n : 1;
    uint64_t window = engine->context < WINDOW ? engine->context : WINDOW;
    const uint64_t settings[] = {s.shape.fingerprint, window, engine->prefill_chunk, s.n_samples};
    s.key = XXH3_64bits_withSeed(o->tokens, o->n_tokens * sizeof *o->tokens,
                                 XXH3_64bits(settings, sizeof settings));
    return s;
}

static int prepare(calibration_run *run, moe_error *err)
{
    const moe_calibrate_options *o = run->options;
    const char *model = moe_gguf_file_at(run->engine->gguf, 0)->path;
    moe_calibration_state settings = settings_of(run->engine, o);
    run->path = o->path != NULL ? moe_strdup(o->path) : moe_calibration_default_path(model);
    run->hidden = moe_calloc_aligned((size_t)run->engine->prefill_chunk * settings.shape.n_embd,
                                     sizeof *run->hidden);
    run->tokens = moe_calloc(o->n_tokens, sizeof *run->tokens);
    size_t size = run->path != NULL ? strlen(run->path) + sizeof ".partial" : 1;
    run->partial = moe_calloc(size, 1);
    if (run->path == NULL || run->hidden == NULL || run->tokens == NULL || run->partial == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to calibrate");
    }
    memcpy(run->tokens, o->tokens, o->n_tokens * sizeof *run->tokens);
    snprintf(run->partial, size, "%s.partial", run->path);
    int status = moe_calibration_state_create(&run->state, &settings, err);
    if (status == MOE_OK) {
        (void)moe_calibration_state_resume(run->state, run->partial);
    }
    return status;
}

static int open_reader(calibration_run *run, moe_model_reader **reader, moe_error *err)
{
    moe_model_reader_options options = run->engine->reading;
    options.is_cancelled = is_cancelled;
    options.cancel_user = run;
    return moe_model_reader_open(reader, &options, err);
}

/* Keeps what was done when the calibration is stopped. */
static int end(calibration_run *run, int status, moe_error *err)
{
    if (status == MOE_ERR_CANCELLED && run->state != NULL) {
        int saved = run->spoilt ? MOE_OK : save_partial(run, err);
        return saved != MOE_OK
                   ? saved
                   : moe_fail(err, status, "the calibration was stopped; the same command goes on");
    }
    if (status == MOE_OK) {
        run->progress = 1.0;
        run->asked_ns = 0;
        (void)is_cancelled(run); /* the last progress report */
        (void)unlink(run->partial);
    }
    return status;
}

int moe_calibrate(moe_engine *engine, const moe_calibrate_options *options, moe_error *err)
{
    if (engine == NULL) {
        return moe_fail_null(err, "moe_calibrate", "engine");
    }
    moe_calibrate_options o = {0};
    int status = moe_engine_need_model(engine, "a calibration", err);
    if (status == MOE_OK) {
        status = moe_struct_take(&moe_kind_calibrate_options, &o, options, err);
    }
    if (status == MOE_OK) {
        status = check_options(engine, &o, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    calibration_run run = {.engine = engine, .options = &o, .saved_ns = moe_now_ns()};
    run.observer = (moe_route_observer){.wants_probs = true, .on_route = on_route, .context = &run};
    moe_weight_reader reader = {.map = &engine->map};
    moe_matmul_kernels_init(&reader.kernels, moe_cpu_features());
    status = moe_blas_load(&run.blas, err);
    reader.blas = run.blas;
    if (status == MOE_OK) {
        status = open_reader(&run, &reader.files, err);
    }
    if (status == MOE_OK) {
        status = prepare(&run, err);
    }
    if (status == MOE_OK) {
        status = count_text(&run, err);
    }
    if (status == MOE_OK) {
        status = compare_outputs(&run, err);
    }
    if (status == MOE_OK) {
        status = compare_weights(&run, &reader, err);
    }
    if (status == MOE_OK) {
        status = write_sidecar(&run, &reader, err);
    }
    status = end(&run, status, err);
    moe_model_reader_close(&reader.files);
    moe_calibration_state_free(&run.state);
    free(run.hidden);
    free(run.tokens);
    free(run.path);
    free(run.partial);
    return status;
}
