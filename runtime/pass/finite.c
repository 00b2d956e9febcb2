/* SPDX-License-Identifier: MIT */
#include "runtime/pass/finite.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/pass/runner.h"

#define EXPONENT 0x7f800000u
#define CHUNK    1024u /* floats that are checked without a branch */

bool moe_all_finite(const float *x, size_t n)
{
    for (size_t first = 0; first < n; first += CHUNK) {
        size_t end = n - first < CHUNK ? n : first + CHUNK;
        uint32_t found = 0;
        for (size_t i = first; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            found |= (bits & EXPONENT) == EXPONENT;
        }
        if (found != 0) {
            return false;
        }
    }
    return true;
}

/* *row: the first row of buffers->x with a value that is not finite, or n_rows. */
static int find_row(moe_runner *runner, uint32_t n_rows, uint32_t *row, moe_error *err)
{
    moe_pass_buffers *b = &runner->buffers;
    size_t n_embd = runner->config->n_embd;
    size_t capacity = b->logits_bytes / (n_embd * sizeof(float));
    int status = MOE_OK;
    *row = n_rows;
    for (uint32_t first = 0; first < n_rows && status == MOE_OK && *row == n_rows;) {
        uint32_t n = n_rows - first < capacity ? n_rows - first : (uint32_t)capacity;
        status =
            runner->device->ops->download(runner->device, b->selected_host, b->x + first * n_embd,
                                          n * n_embd * sizeof(float), err);
        for (uint32_t r = 0; r < n && status == MOE_OK && *row == n_rows; r++) {
            *row = moe_all_finite(b->selected_host + r * n_embd, n_embd) ? n_rows : first + r;
        }
        first += n;
    }
    return status;
}

/* ---- Where it began ---- */

typedef struct origin {
    uint32_t layer; /* UINT32_MAX: before the first */
    uint32_t row;
    bool found;
    const char *block;
} origin;

static int look(moe_runner *runner, const moe_pass *pass, origin *o, uint32_t layer,
                const char *block, moe_error *err)
{
    int status = find_row(runner, pass->n_rows, &o->row, err);
    o->found = status == MOE_OK && o->row < pass->n_rows;
    o->layer = layer;
    o->block = block;
    return status;
}

static int look_at_layer(moe_runner *runner, const moe_pass *pass, uint32_t layer, origin *o,
                         moe_error *err)
{
    int status = moe_attention_block(runner, pass, layer, err);
    if (status == MOE_OK) {
        status = look(runner, pass, o, layer, "attention", err);
    }
    if (status != MOE_OK || o->found) {
        return status;
    }
    status = moe_feed_forward_begin(runner, pass, layer, err);
    if (status == MOE_OK) {
        status = moe_feed_forward_end(runner, pass, layer, err);
    }
    bool routed = moe_layer_has_experts(runner->config, layer);
    return status != MOE_OK ? status
                            : look(runner, pass, o, layer,
                                   routed ? "router and experts" : "feed-forward network", err);
}

static int make_again(moe_runner *runner, const moe_pass *pass, origin *o, moe_error *err)
{
    const moe_model_config *c = runner->config;
    moe_step_inputs inputs;
    int status = moe_pass_begin_step(runner, pass, &inputs, err);
    if (status == MOE_OK) {
        status = runner->device->ops->embed(runner->device, &runner->weights->token_embedding,
                                            pass->tokens, pass->n_rows, c->embedding_scale,
                                            runner->buffers.x, err);
    }
    if (status == MOE_OK) {
        status = look(runner, pass, o, UINT32_MAX, "token embedding", err);
    }
    for (uint32_t layer = 0; layer < c->n_layer && status == MOE_OK && !o->found; layer++) {
        if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
            status = moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        } else {
            status = look_at_layer(runner, pass, layer, o, err);
        }
    }
    return moe_pass_end_step(runner, status, err);
}

/* The second pass is a rehearsal: hooks that only watch are not called, and it predicts nothing. */
static int find_origin(moe_runner *runner, const moe_pass *pass, origin *o, moe_error *err)
{
    moe_pass again = *pass;
    bool prefetches = runner->prefetches;
    again.rehearses = true;
    runner->prefetches = false;
    int status = make_again(runner, &again, o, err);
    runner->prefetches = prefetches;
    return status;
}

static int fail_at_origin(const moe_runner *runner, const moe_pass *pass, const origin *o,
                          moe_error *err)
{
    static const char remedy[] =
        "the model's weights are damaged, or too large for the arithmetic: "
        "compare the file with its source, or verify it";
    char where[96];
    if (!o->found) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: the output head gives values that are not finite; %s",
                        runner->model_path, remedy);
    }
    if (o->layer == UINT32_MAX) {
        snprintf(where, sizeof where, "the embedding of token %d", (int)pass->tokens[o->row]);
    } else {
        snprintf(where, sizeof where, "layer %u, %s", o->layer, o->block);
    }
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: %s: the first values that are not finite, at position %u; %s",
                    runner->model_path, where, pass->kv_rows[o->row].position, remedy);
}

int moe_pass_fail_not_finite(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    origin o = {.found = false};
    int status = find_origin(runner, pass, &o, err);
    return status != MOE_OK ? status : fail_at_origin(runner, pass, &o, err);
}

int moe_pass_check_hidden(moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    uint32_t row;
    int status = find_row(runner, pass->n_rows, &row, err);
    return status == MOE_OK && row < pass->n_rows ? moe_pass_fail_not_finite(runner, pass, err)
                                                  : status;
}
