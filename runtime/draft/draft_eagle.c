/* SPDX-License-Identifier: MIT */
#include "runtime/draft/draft_eagle.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/program_run.h"

_Static_assert(MOE_EAGLE_TAPS == MOE_MOST_TAPS, "a head taps three layers");

int moe_draft_eagle_open(moe_draft_eagle **out, const moe_model_config *trunk, const moe_gguf *gguf,
                         const char *path, moe_error *err)
{
    moe_draft_eagle *eagle = moe_calloc(1, sizeof *eagle);
    *out = eagle;
    return eagle == NULL ? moe_fail(err, MOE_ERR_MEMORY, "no memory for an EAGLE-3 head")
                         : moe_eagle_config_read(&eagle->config, trunk, gguf, path, err);
}

void moe_draft_eagle_close(moe_draft_eagle **eagle_ptr, moe_device *device)
{
    moe_draft_eagle *eagle = *eagle_ptr;
    if (eagle == NULL) {
        return;
    }
    if (eagle->tapped != NULL) {
        device->ops->free(device, eagle->tapped, eagle->tapped_bytes);
    }
    free(eagle->rope_frequencies);
    free(eagle->tokens);
    free(eagle->logits);
    free(eagle->states);
    free(eagle);
    *eagle_ptr = NULL;
}

size_t moe_draft_eagle_features(const moe_draft_eagle *eagle)
{
    return (size_t)MOE_EAGLE_TAPS * eagle->config.n_embd_target;
}

/* Returns the bytes for copies of the layers' inputs. If the head reads the output of the last
 * layer, no copy is needed, because the pass leaves it in its buffer. */
static size_t tapped_bytes(const moe_draft_eagle *eagle, uint32_t max_rows)
{
    return moe_draft_eagle_features(eagle) * max_rows * sizeof(float);
}

uint64_t moe_draft_eagle_bytes(const moe_draft_eagle *eagle, uint32_t max_rows)
{
    const moe_eagle_config *e = &eagle->config;
    uint64_t n_tokens = e->has_tokens ? (uint64_t)e->config.n_vocab + e->n_vocab_target : 0;
    uint64_t n_states = (uint64_t)MOE_LOGIT_ROWS * e->config.n_embd;
    return sizeof *eagle + tapped_bytes(eagle, max_rows) +
           (n_tokens + n_states + e->config.n_rot / 2) * sizeof(float);
}

/* Checks and stores the table that maps each of the head's tokens to a token of the model. Two
 * tokens must not map to the same one. */
static int check_tokens(const moe_draft_eagle *eagle, const int64_t *tokens, const char *path,
                        moe_error *err)
{
    for (uint32_t i = 0; i < eagle->config.config.n_vocab; i++) {
        bool is_token = tokens[i] >= 0 && tokens[i] < (int64_t)eagle->config.n_vocab_target;
        if (!is_token || eagle->logits[tokens[i]] == 0.0f) {
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: element %" PRIu32 " of '" MOE_EAGLE_TOKENS "' is %" PRId64
                            ", which "
                            "is %s",
                            path, i, tokens[i], is_token ? "there twice" : "no token of the model");
        }
        eagle->logits[tokens[i]] = 0.0f;
        eagle->tokens[i] = (int32_t)tokens[i];
    }
    return MOE_OK;
}

static int load_tokens(moe_draft_eagle *eagle, const moe_model_reader_options *reading,
                       moe_error *err)
{
    const moe_eagle_config *e = &eagle->config;
    const uint32_t n = e->config.n_vocab;
    if (!e->has_tokens) {
        return MOE_OK;
    }
    const moe_model_range range = {e->tokens_file, e->tokens_offset, n * sizeof(int64_t)};
    int64_t *read = moe_calloc(n, sizeof *read);
    moe_model_reader *reader = NULL;
    eagle->tokens = moe_calloc(n, sizeof *eagle->tokens);
    eagle->logits = moe_calloc(e->n_vocab_target, sizeof *eagle->logits);
    int status = read != NULL && eagle->tokens != NULL && eagle->logits != NULL
                     ? moe_model_reader_open(&reader, reading, err)
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for a head's tokens");
    for (uint32_t t = 0; t < e->n_vocab_target && status == MOE_OK; t++) {
        eagle->logits[t] = -INFINITY; /* stays so for tokens that the head does not know */
    }
    if (status == MOE_OK) {
        status = moe_model_reader_read(reader, &range, read, err);
    }
    if (status == MOE_OK) {
        status =
            check_tokens(eagle, read, moe_gguf_file_at(reading->gguf, e->tokens_file)->path, err);
    }
    moe_model_reader_close(&reader);
    free(read);
    return status;
}

/* Asks the model's runner to keep copies ("taps") of the residual stream before the layers that
 * the head reads. What it reads behind the last layer needs no tap. */
static int open_taps(moe_draft_eagle *eagle, moe_runner *trunk, moe_error *err)
{
    void *memory = NULL;
    eagle->tapped_bytes = tapped_bytes(eagle, trunk->buffers.max_rows);
    MOE_TRY(trunk->device->ops->alloc(trunk->device, eagle->tapped_bytes, &memory, err));
    eagle->tapped = memory;
    for (uint32_t i = 0; i < MOE_EAGLE_TAPS; i++) {
        size_t n = (size_t)trunk->buffers.max_rows * eagle->config.n_embd_target;
        eagle->taps.layers[i] = eagle->config.target_layers[i];
        eagle->taps.x[i] = eagle->tapped + i * n;
    }
    trunk->taps = &eagle->taps;
    return MOE_OK;
}

int moe_draft_eagle_load(moe_draft_eagle *eagle, moe_runner *runner, moe_runner *trunk,
                         const moe_model_reader_options *reading, moe_error *err)
{
    const moe_model_config *c = &eagle->config.config;
    eagle->runner = runner;
    eagle->rope_frequencies = moe_calloc(c->n_rot / 2, sizeof(float));
    eagle->states = moe_calloc(MOE_LOGIT_ROWS, c->n_embd * sizeof(float));
    if (eagle->rope_frequencies == NULL || eagle->states == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for an EAGLE-3 head");
    }
    moe_rope_frequencies(c, runner->weights->rope_factors, eagle->rope_frequencies);
    runner->rope_frequencies = eagle->rope_frequencies;
    runner->window_frequencies = NULL;
    MOE_TRY(load_tokens(eagle, reading, err));
    return open_taps(eagle, trunk, err);
}

int moe_draft_eagle_fetch(moe_draft_eagle *eagle, moe_runner *trunk, const uint32_t *rows,
                          uint32_t n, float *states, moe_error *err)
{
    MOE_ASSERT(n > 0 && n <= MOE_HEAD_ROWS);
    moe_runner *runner = eagle->runner;
    moe_device *device = trunk->device;
    const moe_device_ops *ops = device->ops;
    float *const *values = runner->buffers.values;
    const moe_run run = {.runner = runner, .n_rows = n};
    const uint32_t n_embd = eagle->config.n_embd_target;
    for (uint32_t i = 0; i < MOE_EAGLE_TAPS; i++) {
        bool is_end = eagle->taps.layers[i] == trunk->config->n_layer;
        const float *x = is_end ? trunk->buffers.values[MOE_VALUE_X] : eagle->taps.x[i];
        MOE_TRY(ops->gather(device, x, n_embd, rows, n, values[MOE_VALUE_TAPPED_A + i], err));
    }
    MOE_TRY(moe_program_run(&run, runner->program->features, err));
    size_t bytes = (size_t)n * eagle->config.config.n_embd * sizeof(float);
    return ops->download(device, states, values[MOE_VALUE_HIDDEN], bytes, err);
}

int moe_draft_eagle_keep(moe_draft_eagle *eagle, const uint32_t *rows, uint32_t n, moe_error *err)
{
    moe_device *device = eagle->runner->device;
    float *const *values = eagle->runner->buffers.values;
    const uint32_t n_embd = eagle->config.config.n_embd;
    MOE_TRY(device->ops->gather(device, values[MOE_VALUE_X], n_embd, rows, n,
                                values[MOE_VALUE_EMBEDDED], err));
    return device->ops->download(device, eagle->states, values[MOE_VALUE_EMBEDDED],
                                 (size_t)n * n_embd * sizeof(float), err);
}

const float *moe_draft_eagle_spread(const moe_draft_eagle *eagle, const float *logits)
{
    if (eagle->tokens == NULL) {
        return logits;
    }
    for (uint32_t i = 0; i < eagle->config.config.n_vocab; i++) {
        eagle->logits[eagle->tokens[i]] = logits[i];
    }
    return eagle->logits;
}
