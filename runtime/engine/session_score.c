/* SPDX-License-Identifier: MIT */
/* Evaluates given tokens and passes the logits of each position to the caller. */
#include "runtime/base/error.h"
#include "runtime/engine/session_panel.h"
#include "runtime/engine/step.h"

typedef struct scoring {
    moe_step_work *step;
    moe_logits_fn visit;
    void *user;
    size_t n_visited; /* positions of the timeline up to the last one passed on */
    bool stopped;
} scoring;

static bool visit_logits(uint32_t row, const float *hidden, const float *logits, void *user)
{
    scoring *scores = user;
    moe_step_keep_logits(row, hidden, logits, scores->step);
    size_t position = scores->step->kv_rows[row].position;
    scores->n_visited = position + 1;
    scores->stopped = !scores->visit(position, logits, scores->user);
    return !scores->stopped;
}

/* Evaluates the next rows: one pass, or one chunk of a panel. Lossy modes act only on passes. */
static int score_rows(moe_session *session, scoring *scores, moe_error *err)
{
    moe_engine *engine = session->engine;
    moe_step_work s = {.engine = engine, .sessions = &session, .n_sessions = 1};
    moe_panel_chunk chunk;
    if (!moe_lossy_acts(engine->lossy) && moe_panel_find(engine, &session, 1)) {
        chunk = moe_panel_next_chunk(engine);
        s.panel = &chunk;
    }
    scores->step = &s;
    int status = moe_step_run(&s, true, visit_logits, scores, err);
    if (s.panel != NULL && status != MOE_OK) {
        moe_panel_drop(engine);
    } else if (s.panel != NULL) {
        moe_panel_go_on(engine, s.n_rows);
        if (scores->stopped || moe_panel_is_done(engine)) {
            status = moe_step_take_panel(engine, chunk.first + s.n_rows, err);
        }
    }
    scores->step = NULL;
    moe_step_free(&s);
    return status;
}

int moe_session_score(moe_session *session, const int32_t *tokens, size_t n, moe_logits_fn visit,
                      void *user, moe_error *err)
{
    if (session == NULL || visit == NULL || (tokens == NULL && n > 0)) {
        return moe_fail_null(err, "moe_session_score", "session, tokens or visit");
    }
    if (moe_session_n_pending(session) > 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the session has %zu tokens that are not evaluated; step it first",
                        moe_session_n_pending(session));
    }
    int status = moe_session_feed(session, tokens, n, err);
    if (status == MOE_OK && moe_step_leave_out_cancelled(&session, 1) == 0) {
        status = moe_fail(err, MOE_ERR_CANCELLED, "scoring was cancelled");
    }
    scoring scores = {.visit = visit, .user = user};
    while (status == MOE_OK && moe_session_n_unevaluated(session) > 0 && !scores.stopped) {
        status = score_rows(session, &scores, err);
    }
    if (status == MOE_ERR_CANCELLED && !session->was_cancelled) {
        (void)moe_step_leave_out_cancelled(&session, 1);
    }
    if (status == MOE_OK && scores.stopped) {
        /* The pass evaluated positions beyond the last wanted one. */
        moe_session_truncate(session, scores.n_visited, NULL);
        session->has_logits = true;
    } else if (moe_session_n_pending(session) > 0) {
        moe_session_truncate(session, session->n_tokens - moe_session_n_pending(session), NULL);
    }
    return status;
}
