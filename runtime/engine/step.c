/* SPDX-License-Identifier: MIT */
/* One step: which rows of which sessions, one pass, then the sampler of every session that has
 * nothing left to evaluate. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

/* The rows of a step. Sessions are the caller's array. */
typedef struct step {
    moe_engine *engine;
    moe_session *const *sessions;
    size_t n_sessions;
    uint32_t *n_rows_of; /* [n_sessions] */
    uint32_t n_rows;
    int32_t *tokens;
    moe_kv_row *kv_rows;
    moe_row_id *row_ids;
    uint32_t *logit_rows;
    uint32_t n_logit_rows;
    size_t *session_of; /* [n_rows] */
} step;

static uint32_t n_pending(const moe_session *session)
{
    return session->n_tokens - session->n_evaluated;
}

/* Every session is one of this engine, and stands in the list once. */
static int check_sessions(const step *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        if (s->sessions[i]->engine != s->engine) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "session %zu belongs to another engine", i);
        }
        for (size_t k = 0; k < i; k++) {
            if (s->sessions[k] == s->sessions[i]) {
                return moe_fail(err, MOE_ERR_ARGUMENT, "sessions %zu and %zu are the same", k, i);
            }
        }
    }
    return MOE_OK;
}

/* Every session with something to do gets a row, then the rest of the rows go out in order. */
static int share_rows(step *s, moe_error *err)
{
    uint32_t n_active = 0;
    for (size_t i = 0; i < s->n_sessions; i++) {
        s->n_rows_of[i] = n_pending(s->sessions[i]) > 0;
        n_active += s->n_rows_of[i];
    }
    uint32_t max_rows = s->engine->prefill_chunk;
    if (n_active > max_rows) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "%u sessions in one step, but a pass has at most %u rows; open the engine "
                        "with a larger prefill chunk",
                        n_active, max_rows);
    }
    uint32_t left = max_rows - n_active;
    for (size_t i = 0; i < s->n_sessions; i++) {
        uint32_t more = n_pending(s->sessions[i]) - s->n_rows_of[i];
        more = more < left ? more : left;
        s->n_rows_of[i] += more;
        s->n_rows += s->n_rows_of[i];
        left -= more;
    }
    return MOE_OK;
}

static int reserve_pages(step *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t end = session->n_evaluated + s->n_rows_of[i];
        int status = s->n_rows_of[i] == 0 ? MOE_OK
                                          : moe_kv_table_reserve(&s->engine->kv, &session->kv,
                                                                 session->n_evaluated, end, err);
        if (status != MOE_OK) {
            return status;
        }
    }
    return MOE_OK;
}

static void fill_rows(step *s, bool all_logits)
{
    uint32_t row = 0;
    for (size_t i = 0; i < s->n_sessions; i++) {
        const moe_session *session = s->sessions[i];
        for (uint32_t r = 0; r < s->n_rows_of[i]; r++, row++) {
            uint32_t position = session->n_evaluated + r;
            s->tokens[row] = session->tokens[position];
            s->kv_rows[row] = moe_kv_row_at(session->kv.addresses, position);
            s->row_ids[row] = (moe_row_id){session->number, position};
            s->session_of[row] = i;
            if (all_logits || position + 1 == session->n_tokens) {
                s->logit_rows[s->n_logit_rows++] = row;
            }
        }
    }
}

static void step_free(step *s)
{
    free(s->n_rows_of);
    free(s->tokens);
    free(s->kv_rows);
    free(s->row_ids);
    free(s->logit_rows);
    free(s->session_of);
}

static int step_prepare(step *s, bool all_logits, moe_error *err)
{
    s->n_rows_of = moe_calloc(s->n_sessions, sizeof *s->n_rows_of);
    if (s->n_rows_of == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %zu sessions", s->n_sessions);
    }
    int status = check_sessions(s, err);
    if (status == MOE_OK) {
        status = share_rows(s, err);
    }
    if (status != MOE_OK) {
        return status;
    }
    s->tokens = moe_calloc(s->n_rows, sizeof *s->tokens);
    s->kv_rows = moe_calloc(s->n_rows, sizeof *s->kv_rows);
    s->row_ids = moe_calloc(s->n_rows, sizeof *s->row_ids);
    s->logit_rows = moe_calloc(s->n_rows, sizeof *s->logit_rows);
    s->session_of = moe_calloc(s->n_rows, sizeof *s->session_of);
    if (s->tokens == NULL || s->kv_rows == NULL || s->row_ids == NULL || s->logit_rows == NULL ||
        s->session_of == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %u rows", s->n_rows);
    }
    status = reserve_pages(s, err);
    if (status == MOE_OK) {
        fill_rows(s, all_logits);
    }
    return status;
}

static bool step_is_cancelled(void *user)
{
    const step *s = user;
    bool cancelled = false;
    for (size_t i = 0; i < s->n_sessions; i++) {
        cancelled |= atomic_load_explicit(&s->sessions[i]->cancelled, memory_order_relaxed);
    }
    return cancelled;
}

static void clear_cancel_requests(const step *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        atomic_store(&s->sessions[i]->cancelled, false);
    }
}

static int allocate_logits(const step *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        if (session->logits == NULL) {
            session->logits = moe_calloc(s->engine->config.n_vocab, sizeof *session->logits);
            if (session->logits == NULL) {
                return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's logits");
            }
        }
    }
    return MOE_OK;
}

static bool keep_logits(uint32_t row, const float *logits, void *user)
{
    const step *s = user;
    moe_session *session = s->sessions[s->session_of[row]];
    memcpy(session->logits, logits, s->engine->config.n_vocab * sizeof *logits);
    return true;
}

/* The pass has succeeded: the rows are part of the timelines' past. */
static void advance(step *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t n = s->n_rows_of[i];
        if (n == 0) {
            continue;
        }
        uint32_t n_sampled = session->n_sampled_pending;
        session->n_sampled_pending = 0;
        session->n_evaluated += n;
        session->has_logits = n_pending(session) == 0;
        s->engine->n_decode_tokens += n_sampled;
        s->engine->n_prompt_tokens += n - n_sampled;
    }
}

/* Also where this step had nothing to evaluate: a timeline cut back to its last logits goes on from
 * them. */
static int sample(step *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        if (!session->has_logits || n_pending(session) > 0 || session->evaluate_only ||
            moe_session_is_full(session)) {
            continue;
        }
        int32_t token = moe_sampler_next(&session->sampler, session->logits, session->tokens,
                                         session->n_tokens);
        int status = moe_session_append_sampled(session, token, err);
        if (status != MOE_OK) {
            return status;
        }
    }
    return MOE_OK;
}

static int run_step(step *s, bool all_logits, moe_row_logits_fn on_logits, void *user,
                    moe_error *err)
{
    int status = step_prepare(s, all_logits, err);
    if (status == MOE_OK && step_is_cancelled(s)) {
        clear_cancel_requests(s);
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    if (status != MOE_OK || s->n_rows == 0) {
        return status;
    }
    status = allocate_logits(s, err);
    moe_pass pass = {.n_rows = s->n_rows,
                     .tokens = s->tokens,
                     .kv_rows = s->kv_rows,
                     .row_ids = s->row_ids,
                     .logit_rows = s->logit_rows,
                     .n_logit_rows = s->n_logit_rows,
                     .on_logits = on_logits,
                     .user = user,
                     .is_cancelled = step_is_cancelled,
                     .cancel_user = s};
    if (status == MOE_OK) {
        status = moe_pass_run(s->engine, &pass, err);
    }
    if (status == MOE_ERR_CANCELLED) {
        clear_cancel_requests(s);
    }
    if (status == MOE_OK) {
        advance(s);
    }
    return status;
}

int moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    step s = {.engine = engine, .sessions = sessions, .n_sessions = n};
    int status = run_step(&s, false, keep_logits, &s, err);
    if (status == MOE_OK) {
        status = sample(&s, err);
    }
    step_free(&s);
    return status;
}

typedef struct scoring {
    step *step;
    moe_logits_fn visit;
    void *user;
    size_t n_visited; /* positions of the timeline up to the last one handed over */
    bool stopped;
} scoring;

static bool visit_logits(uint32_t row, const float *logits, void *user)
{
    scoring *scores = user;
    keep_logits(row, logits, scores->step);
    size_t position = scores->step->kv_rows[row].position;
    scores->n_visited = position + 1;
    scores->stopped = !scores->visit(position, logits, scores->user);
    return !scores->stopped;
}

int moe_session_score(moe_session *session, const int32_t *tokens, size_t n, moe_logits_fn visit,
                      void *user, moe_error *err)
{
    if (n_pending(session) > 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the session has %u tokens that are not evaluated; step it first",
                        n_pending(session));
    }
    int status = moe_session_feed(session, tokens, n, err);
    scoring scores = {.visit = visit, .user = user};
    while (status == MOE_OK && n_pending(session) > 0 && !scores.stopped) {
        step s = {.engine = session->engine, .sessions = &session, .n_sessions = 1};
        scores.step = &s;
        status = run_step(&s, true, visit_logits, &scores, err);
        step_free(&s);
    }
    if (status == MOE_OK && scores.stopped) {
        /* The pass went on behind the position that was the last to be wanted. */
        moe_session_truncate(session, scores.n_visited, NULL);
        session->has_logits = true;
    } else if (n_pending(session) > 0) {
        moe_session_truncate(session, session->n_evaluated, NULL);
    }
    return status;
}
