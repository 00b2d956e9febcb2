/* SPDX-License-Identifier: MIT */
#include "runtime/engine/draft_model.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_state.h"

struct moe_draft_model {
    const moe_engine_calls *calls;
    moe_engine *engine;
    moe_session **mirrors; /* [capacity] the mirrors of the sessions in this draft */
    moe_session_draft **owners;
    size_t capacity;
};

int moe_draft_model_open(moe_draft_model **out, const moe_engine_options *o,
                         const moe_engine_calls *calls, moe_error *err)
{
    *out = NULL;
    if (o->speculate != MOE_SPECULATE_MODEL) {
        return MOE_OK;
    }
    moe_draft_model *model = moe_calloc(1, sizeof *model);
    if (model == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a draft model");
    }
    moe_engine_options options;
    moe_lab_options lab;
    moe_lab_options_init(&lab);
    lab.kernels = o->lab->kernels;
    model->calls = calls;
    calls->options_init(&options, sizeof options);
    options.model_path = o->draft_model;
    options.n_threads = o->n_threads;
    options.context = o->context;
    options.prefill_chunk = o->prefill_chunk;
    options.lab = &lab;
    options.device = "cpu"; /* a GPU's memory is for the main model */
    options.host_memory = o->host_memory;
    options.overcommit_memory = o->overcommit_memory;
    options.calibration = "none";
    options.log = o->log;
    options.user = o->user;
    moe_error reason;
    int status = calls->open(&model->engine, &options, &reason);
    if (status != MOE_OK) {
        free(model);
        return moe_fail(err, status, "draft model: %.480s", reason.message);
    }
    model->engine->follow.border = NULL; /* only the main engine follows the machine's memory */
    /* If the options limit memory, the draft model's sessions take memory from its own slots,
     * because the rest is for the main model. Otherwise they take the machine's memory. */
    if (o->host_memory != 0) {
        moe_memory_border_seal(&model->engine->border, &model->engine->plan);
    }
    *out = model;
    return MOE_OK;
}

void moe_draft_model_close(moe_draft_model **model)
{
    if (*model != NULL) {
        (*model)->calls->close(&(*model)->engine);
        free((*model)->mirrors);
        free((*model)->owners);
        free(*model);
        *model = NULL;
    }
}

uint64_t moe_draft_model_bytes(const moe_draft_model *model)
{
    const moe_memory_plan *plan = &model->engine->plan;
    return plan->total - plan->process;
}

int moe_draft_model_check(const moe_draft_model *model, const moe_engine *engine, moe_error *err)
{
    const moe_engine *draft = model->engine;
    if (draft->config.n_vocab != engine->config.n_vocab) {
        return moe_fail(err, MOE_ERR_MISMATCH,
                        "the draft model has a vocabulary of %u tokens, the model one of %u",
                        draft->config.n_vocab, engine->config.n_vocab);
    }
    for (uint32_t t = 0; engine->tokenizer != NULL && t < engine->config.n_vocab; t++) {
        size_t size, draft_size;
        const char *piece = moe_token_piece(engine, (int32_t)t, true, &size);
        const char *other =
            draft->tokenizer != NULL ? moe_token_piece(draft, (int32_t)t, true, &draft_size) : "";
        if (draft->tokenizer == NULL || size != draft_size || memcmp(piece, other, size) != 0) {
            return moe_fail(err, MOE_ERR_MISMATCH,
                            "the draft model's token %u is not the model's: their vocabularies "
                            "differ",
                            t);
        }
    }
    return MOE_OK;
}

/* Makes the timeline of the mirror (the draft model's session) equal to the session's. */
static int follow(moe_draft_model *model, moe_session_draft *d, moe_error *err)
{
    const moe_draft_line *line = &d->line;
    if (d->mirror == NULL) {
        moe_session_options options;
        moe_session_options_init(&options);
        options.evaluate_only = true;
        MOE_TRY(moe_session_create(&d->mirror, model->engine, &options, err));
    }
    moe_session *mirror = d->mirror;
    uint32_t n = 0;
    while (n < mirror->n_tokens && n < line->n_tokens && mirror->tokens[n] == line->tokens[n]) {
        n++;
    }
    /* The draft begins from the logits of the last token, so that token is evaluated again if
     * necessary. */
    n = n == line->n_tokens ? n - 1 : n;
    MOE_TRY(moe_session_truncate(mirror, n, err));
    return moe_session_feed(mirror, line->tokens + n, line->n_tokens - n, err);
}

static int reserve(moe_draft_model *model, size_t n, moe_error *err)
{
    if (n <= model->capacity) {
        return MOE_OK;
    }
    moe_session **mirrors = moe_realloc_array(model->mirrors, n, sizeof *mirrors);
    model->mirrors = mirrors != NULL ? mirrors : model->mirrors;
    moe_session_draft **owners = moe_realloc_array(model->owners, n, sizeof *owners);
    model->owners = owners != NULL ? owners : model->owners;
    if (mirrors == NULL || owners == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for drafts of %zu sessions", n);
    }
    model->capacity = n;
    return MOE_OK;
}

/* Collects the mirrors of all sessions whose frontier is not empty, and feeds each the frontier's
 * token. */
static int collect(moe_draft_model *model, moe_session_draft *const *drafts, size_t n,
                   size_t *n_rows, moe_error *err)
{
    *n_rows = 0;
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        moe_session_draft *d = drafts[i];
        if (!d->active || d->n_frontier == 0) {
            continue;
        }
        moe_draft_narrow_frontier(d, 1);
        uint32_t node = d->frontier[0];
        if (node == 0) {
            status = follow(model, d, err);
        } else {
            status = moe_session_feed(d->mirror, &d->tree.nodes[node].token, 1, err);
        }
        model->mirrors[*n_rows] = d->mirror;
        model->owners[(*n_rows)++] = d;
    }
    return status;
}

static int evaluate(moe_draft_model *model, size_t n, uint32_t *n_passes, moe_error *err)
{
    bool pending = true;
    int status = MOE_OK;
    while (pending && status == MOE_OK) {
        status = moe_step(model->engine, model->mirrors, n, err);
        (*n_passes)++;
        pending = false;
        for (size_t i = 0; i < n; i++) {
            pending |= moe_session_n_pending(model->mirrors[i]) > 0;
        }
    }
    return status;
}

int moe_draft_model_run(void *context, moe_speculation *s, moe_session_draft *const *drafts,
                        size_t n, moe_error *err)
{
    moe_draft_model *model = context;
    size_t n_rows = 0;
    int status = reserve(model, n, err);
    for (size_t i = 0; i < n; i++) {
        moe_draft_begin_frontier(drafts[i]);
    }
    if (status == MOE_OK) {
        status = collect(model, drafts, n, &n_rows, err);
    }
    while (status == MOE_OK && n_rows > 0) {
        status = evaluate(model, n_rows, &s->n_draft_passes, err);
        for (size_t i = 0; i < n_rows && status == MOE_OK; i++) {
            moe_session_draft *owner = model->owners[i];
            uint32_t node = owner->frontier[0];
            owner->n_frontier = 0;
            status = moe_draft_expand(s, owner, node, moe_session_logits(model->mirrors[i]), err);
        }
        if (status == MOE_OK) {
            status = collect(model, drafts, n, &n_rows, err);
        }
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        if (drafts[i]->active) {
            moe_draft_cut(s, drafts[i], NULL);
        }
    }
    return status;
}
