/* SPDX-License-Identifier: MIT */
/* Allocates and frees a session's part of speculation (session_draft.c). The session of a second
 * draft model is closed by the code that closes the session. */
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/draft/draft_head.h"
#include "runtime/draft/lookahead.h"
#include "runtime/pass/runner.h"

/* Gives drawing drafts and accepting them different random numbers. */
#define DRAFT_SEED 0xd4a3c0de5eedull

void moe_session_draft_seed(moe_session_draft *draft, const moe_random *sampler)
{
    const uint64_t *state = sampler->state;
    moe_random_seed(&draft->random, state[0] ^ (state[1] << 1) ^ DRAFT_SEED);
}

int moe_session_draft_create(moe_session_draft **out, const moe_speculation *s,
                             const moe_session_draft *session, moe_error *err)
{
    *out = NULL;
    uint32_t n = 1 + (s->tree_nodes > 0 ? MOE_TREE_MAX_NODES - 1 : s->max_draft);
    moe_session_draft *d = moe_calloc(1, sizeof *d);
    if (d == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's drafts");
    }
    d->sampler = session->sampler;
    d->kv = session->kv;
    d->states = session->states;
    d->cancelled = session->cancelled;
    int status = moe_token_tree_init(&d->tree, n, err);
    size_t path = s->tree_nodes > 0 ? (size_t)n * (s->max_draft + 1) : 1;
    d->survival = moe_calloc(n, sizeof *d->survival);
    d->confidence = moe_calloc(n, sizeof *d->confidence);
    d->path = moe_calloc(path, sizeof *d->path);
    d->frontier = moe_calloc(n, sizeof *d->frontier);
    d->drawn = moe_calloc(s->max_draft + 1, sizeof *d->drawn);
    d->drawn_capacity = moe_calloc(s->max_draft + 1, sizeof *d->drawn_capacity);
    d->n_drawn = s->max_draft + 1;
    d->path_stride = s->max_draft + 1;
    if (status == MOE_OK &&
        (d->survival == NULL || d->confidence == NULL || d->path == NULL || d->frontier == NULL ||
         d->drawn == NULL || d->drawn_capacity == NULL)) {
        status = moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's drafts");
    }
    if (status == MOE_OK && s->ahead != NULL) {
        status = moe_ahead_line_create(&d->ahead, s->runner->config, err);
    }
    if (status == MOE_OK && s->parts.head != NULL) {
        status = moe_head_line_create(&d->head, s->parts.head, err);
    }
    if (status == MOE_OK && s->use[MOE_DRAFTER_NGRAM]) {
        status = moe_suffix_index_create(&d->suffix, err);
    }
    if (status != MOE_OK) {
        moe_session_draft_free(&d);
        return status;
    }
    *out = d;
    return MOE_OK;
}

void moe_session_draft_free(moe_session_draft **draft)
{
    moe_session_draft *d = *draft;
    if (d == NULL) {
        return;
    }
    moe_token_tree_free(&d->tree);
    for (uint32_t i = 0; d->drawn != NULL && i < d->n_drawn; i++) {
        free(d->drawn[i].choices);
    }
    free(d->survival);
    free(d->confidence);
    free(d->path);
    free(d->frontier);
    free(d->drawn);
    free(d->drawn_capacity);
    moe_suffix_index_free(&d->suffix);
    moe_ahead_line_free(&d->ahead);
    moe_head_line_free(&d->head);
    free(d);
    *draft = NULL;
}
