/* SPDX-License-Identifier: MIT */
/* A session's timeline: its tokens, how many of them are evaluated, and its KV pages.
 *
 *  tokens:  [ evaluated ........ | pending (fed, or the last one sampled) ]
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/struct_size.h"
#include "runtime/draft/draft_head.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/session_panel.h"
#include "runtime/engine/session_park.h"
#include "runtime/engine/session_timeline.h"
#include "runtime/engine/session_wake.h"

void moe_session_options_init_sized(moe_session_options *options, size_t struct_size)
{
    moe_session_options defaults = {.struct_size = sizeof defaults};
    moe_sampling_init(&defaults.sampling);
    moe_struct_init(&moe_kind_session_options, options, struct_size, &defaults);
}

static int create(moe_session **out, moe_engine *engine, const moe_session_options *options,
                  moe_error *err)
{
    if (out == NULL) {
        return moe_fail_null(err, "moe_session_create", "out");
    }
    *out = NULL;
    if (engine == NULL) {
        return moe_fail_null(err, "moe_session_create", "engine");
    }
    moe_session_options o;
    moe_session_options_init(&o);
    int status =
        options == NULL ? MOE_OK : moe_struct_take(&moe_kind_session_options, &o, options, err);
    if (status == MOE_OK && options != NULL) {
        moe_sampling given = o.sampling;
        moe_sampling_init(&o.sampling);
        status = moe_sampling_take(&o.sampling, &given, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_need_model(engine, "a session", err);
    }
    if (status != MOE_OK) {
        return status;
    }
    MOE_TRY(moe_session_take_state(engine, err));
    moe_session *session = moe_calloc(1, sizeof *session);
    if (session == NULL) {
        moe_memory_border_give(&engine->border, engine->session_bytes);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session");
    }
    session->engine = engine;
    moe_park_add(session);
    moe_engine_hold(engine);
    session->number = engine->n_sessions++;
    session->evaluate_only = o.evaluate_only;
    status = moe_sampler_init(&session->sampler, &o.sampling, engine->config.n_vocab, err);
    if (status == MOE_OK && engine->speculation != NULL) {
        moe_session_draft parts = {.sampler = &session->sampler,
                                   .kv = &session->kv,
                                   .states = &session->states,
                                   .cancelled = &session->cancelled};
        status = moe_session_draft_create(&session->draft, engine->speculation, &parts, err);
    }
    if (status == MOE_OK && session->draft != NULL) {
        moe_session_draft_seed(session->draft, &session->sampler.random);
    }
    if (status != MOE_OK) {
        moe_session_close(&session);
        return status;
    }
    *out = session;
    return MOE_OK;
}

int moe_session_create(moe_session **out, moe_engine *engine, const moe_session_options *options,
                       moe_error *err)
{
    if (engine != NULL) {
        moe_park_use(engine, NULL, 0);
    }
    return create(out, engine, options, err);
}

void moe_session_close(moe_session **session_ptr)
{
    moe_session *session = session_ptr != NULL ? *session_ptr : NULL;
    if (session == NULL) {
        return;
    }
    const moe_engine *engine = session->engine;
    moe_panel_leave(session);
    moe_park_remove(session);
    moe_kv_table_free(&session->engine->kv, &session->kv);
    moe_state_table_free(&session->engine->states, &session->states);
    moe_sampler_free(&session->sampler);
    if (session->draft != NULL) {
        moe_session_close(&session->draft->mirror);
    }
    moe_session_draft_free(&session->draft);
    free(session->tokens);
    free(session->sampled);
    moe_unmap_pages(session->logits, session->engine->config.n_vocab * sizeof *session->logits);
    moe_session_give_memory(session);
    free(session);
    moe_engine_release(engine);
    *session_ptr = NULL;
}

size_t moe_session_take(moe_session *session, int32_t *tokens, size_t capacity)
{
    if (session == NULL || tokens == NULL) {
        return 0;
    }
    size_t n = session->n_sampled < capacity ? session->n_sampled : capacity;
    for (size_t i = 0; i < n; i++) {
        tokens[i] = session->tokens[session->sampled[i]];
    }
    if (n > 0) {
        session->n_sampled -= (uint32_t)n;
        memmove(session->sampled, session->sampled + n,
                session->n_sampled * sizeof *session->sampled);
    }
    return n;
}

size_t moe_session_n_tokens(const moe_session *session)
{
    return session != NULL ? session->n_tokens : 0;
}

/* Returns how many tokens have been evaluated at least once. */
static uint32_t n_seen(const moe_session *session)
{
    return session->n_evaluated > session->replay_end ? session->n_evaluated : session->replay_end;
}

size_t moe_session_n_pending(const moe_session *session)
{
    return session != NULL ? session->n_tokens - n_seen(session) : 0;
}

const int32_t *moe_session_tokens(const moe_session *session)
{
    return session != NULL ? session->tokens : NULL;
}

const float *moe_session_logits(const moe_session *session)
{
    return session != NULL && session->has_logits ? session->logits : NULL;
}

/* Cuts the timeline back to the latest position for which recurrent layers have a state and
 * layers with a window have their pages. The tokens from there to n are evaluated again. */
static void cut_back(moe_session *session, uint32_t n)
{
    moe_engine *engine = session->engine;
    moe_head_line *head = session->draft != NULL ? session->draft->head : NULL;
    uint32_t at = session->n_evaluated < n ? session->n_evaluated : n;
    uint32_t before;
    do {
        before = at;
        at = moe_state_table_rewind(&engine->states, &session->states, at);
        at = moe_kv_table_rewind(&engine->kv, &session->kv, at);
        at = head != NULL ? moe_head_line_cut(head, n, at) : at;
    } while (at < before);
    session->n_evaluated = at;
    session->replay_end = n;
    session->has_logits = false;
    moe_session_give_back_pages(engine);
}

int moe_session_feed(moe_session *session, const int32_t *tokens, size_t n, moe_error *err)
{
    if (session == NULL || (tokens == NULL && n > 0)) {
        return moe_fail_null(err, "moe_session_feed", "session or tokens");
    }
    MOE_TRY(moe_park_wake(session->engine, &session, 1, err));
    return moe_session_append(session, tokens, n, err);
}

int moe_session_truncate(moe_session *session, size_t n, moe_error *err)
{
    if (session == NULL) {
        return moe_fail_null(err, "moe_session_truncate", "session");
    }
    if (n > session->n_tokens) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "cannot truncate a timeline of %u tokens to %zu",
                        session->n_tokens, n);
    }
    if (n == session->n_tokens) {
        return MOE_OK;
    }
    MOE_TRY(moe_park_wake(session->engine, &session, 1, err));
    moe_panel_leave(session);
    session->n_tokens = (uint32_t)n;
    if (session->draft != NULL && session->draft->suffix != NULL) {
        moe_suffix_index_cut(session->draft->suffix, (uint32_t)n);
    }
    while (session->n_sampled > 0 && session->sampled[session->n_sampled - 1] >= n) {
        session->n_sampled--;
    }
    if (n_seen(session) >= n) {
        session->n_sampled_pending = 0; /* the pending sampled token was at n_evaluated */
    }
    if (n_seen(session) > n) {
        cut_back(session, (uint32_t)n);
    }
    return MOE_OK;
}

int moe_session_follow(moe_session *session, const int32_t *tokens, size_t n, size_t *n_kept,
                       moe_error *err)
{
    if (session == NULL || (tokens == NULL && n > 0)) {
        return moe_fail_null(err, "moe_session_follow", "session or tokens");
    }
    if (n > session->engine->context) {
        return moe_fail(err, MOE_ERR_CONTEXT_FULL,
                        "%zu tokens do not fit a context of %u; shorten the conversation or open "
                        "the model with a larger context",
                        n, session->engine->context);
    }
    size_t same = 0;
    while (same + 1 < n && same < session->n_tokens && session->tokens[same] == tokens[same]) {
        same++;
    }
    int status = moe_session_truncate(session, same, err);
    if (n_kept != NULL) {
        *n_kept = status == MOE_OK ? same : 0;
    }
    return status == MOE_OK && n > same ? moe_session_feed(session, tokens + same, n - same, err)
                                        : status;
}

static int copy_timeline(moe_session *fork, const moe_session *session, moe_error *err)
{
    MOE_TRY(moe_session_append(fork, session->tokens, session->n_tokens, err));
    MOE_TRY(moe_session_grow_sampled(fork, session->n_sampled, err));
    if (session->n_sampled > 0) {
        memcpy(fork->sampled, session->sampled, session->n_sampled * sizeof *fork->sampled);
    }
    if (session->has_logits) {
        size_t n_vocab = session->engine->config.n_vocab;
        fork->logits = moe_map_pages(n_vocab * sizeof *fork->logits);
        if (fork->logits == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for the logits of a fork");
        }
        memcpy(fork->logits, session->logits, n_vocab * sizeof *fork->logits);
    }
    return MOE_OK;
}

int moe_session_fork(moe_session **out, moe_session *session, moe_error *err)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || session == NULL) {
        return moe_fail_null(err, "moe_session_fork", "out or session");
    }
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling = session->sampler.settings;
    options.evaluate_only = session->evaluate_only;
    moe_panel_leave(session); /* pages that it writes to cannot be shared */
    int status = moe_park_wake(session->engine, &session, 1, err);
    status = status == MOE_OK ? create(out, session->engine, &options, err) : status;
    if (status != MOE_OK) {
        return status;
    }
    moe_session *fork = *out;
    status = moe_kv_table_share(&session->engine->kv, &fork->kv, &session->kv, err);
    status =
        status == MOE_OK ? moe_sampler_inherit(&fork->sampler, &session->sampler, err) : status;
    if (status == MOE_OK) {
        moe_state_table_share(&fork->states, &session->states);
        fork->n_evaluated = session->n_evaluated;
        fork->replay_end = session->replay_end;
        fork->marks = session->marks;
        fork->marked_from = session->marked_from;
        status = copy_timeline(fork, session, err);
    }
    if (status != MOE_OK) {
        moe_session_close(out);
        return status;
    }
    fork->states.begins_turn = session->states.begins_turn;
    fork->kv.begins_turn = session->kv.begins_turn;
    if (fork->draft != NULL) {
        fork->draft->random = session->draft->random;
    }
    if (fork->draft != NULL && fork->draft->head != NULL) {
        status = moe_head_line_copy(fork->draft->head, session->draft->head, err);
        if (status != MOE_OK) {
            moe_session_close(out);
            return status;
        }
    }
    fork->n_sampled = session->n_sampled;
    fork->n_sampled_pending = session->n_sampled_pending;
    fork->has_logits = session->has_logits;
    return MOE_OK;
}

void moe_session_cancel(moe_session *session)
{
    if (session != NULL) {
        atomic_store(&session->cancelled, true);
    }
}

bool moe_session_was_cancelled(const moe_session *session)
{
    return session != NULL && session->was_cancelled;
}
