/* SPDX-License-Identifier: MIT */
/* One pass of a step: chooses rows of the sessions, runs the pass, then the sampler of every
 * session that has nothing left to evaluate. With speculation, the rows of a session that writes
 * are the nodes of its token tree, and the walk through the tree replaces the sampler. */
#include "runtime/engine/step.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_copies.h"
#include "runtime/engine/session_panel.h"
#include "runtime/pass/op_ngrams.h"
#include "runtime/engine/session_timeline.h"

/* Whether all of the panel's sessions are cancelled. One alone does not end a chunk of experts,
 * because it has rows of all sessions. */
static bool panel_is_cancelled(const moe_panel *p)
{
    bool cancelled = true;
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        const moe_session *session = p->prompts[i].session;
        cancelled &=
            session == NULL || atomic_load_explicit(&session->cancelled, memory_order_relaxed);
    }
    return cancelled;
}

static bool step_is_cancelled(void *user)
{
    const moe_step_work *s = user;
    const moe_wait_cancel *engine = &s->engine->cancel;
    const bool serves = s->panel != NULL && s->panel->part == MOE_PANEL_EXPERTS;
    bool cancelled = serves && panel_is_cancelled(&s->engine->panel);
    for (size_t i = 0; i < s->n_sessions && !serves; i++) {
        cancelled |= atomic_load_explicit(&s->sessions[i]->cancelled, memory_order_relaxed);
    }
    return cancelled || (engine->is_cancelled != NULL && engine->is_cancelled(engine->user));
}

static int allocate_logits(const moe_step_work *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        if (session->logits == NULL) {
            session->logits = moe_map_pages(s->engine->config.n_vocab * sizeof *session->logits);
            if (session->logits == NULL) {
                return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's logits");
            }
        }
    }
    return MOE_OK;
}

bool moe_step_keep_logits(uint32_t row, const float *hidden, const float *logits, void *user)
{
    const moe_step_work *s = user;
    size_t i = s->session_of[row];
    moe_session *session = s->sessions[i];
    if (moe_session_has_tree(session)) {
        uint32_t node = row - s->first_row[i];
        moe_speculation *speculation = s->engine->speculation;
        if (moe_speculation_visit(speculation, session->draft, node, logits)) {
            memcpy(session->logits, logits, s->engine->config.n_vocab * sizeof *logits);
        }
        return true;
    }
    session->has_logits = false; /* until the step has succeeded */
    memcpy(session->logits, logits, s->engine->config.n_vocab * sizeof *logits);
    const uint32_t position = s->kv_rows[row].position;
    bool is_sampled = session->n_sampled_pending > 0 && position + 1 == session->n_tokens;
    if (session->watch != NULL && !is_sampled) {
        session->watch(position, hidden, logits, session->watch_user);
    }
    return true;
}

/* Appends the accepted path of the session's tree, and the token after it, to its timeline. */
static int commit_tree(moe_session *session, moe_error *err)
{
    moe_engine *engine = session->engine;
    moe_session_draft *d = session->draft;
    uint32_t n_accepted;
    MOE_TRY(moe_speculation_commit(engine->speculation, d, &n_accepted, err));
    for (uint32_t i = 0; i < n_accepted; i++) {
        session->sampled[session->n_sampled++] = session->n_tokens + i;
    }
    session->n_tokens += n_accepted;
    session->n_evaluated += 1 + n_accepted;
    session->n_sampled_pending = 0;
    session->has_logits = true;
    moe_kv_table_truncate(&engine->kv, &session->kv, session->n_evaluated);
    moe_kv_table_advance(&engine->kv, &session->kv, session->n_evaluated - 1 - n_accepted,
                         session->n_evaluated);
    engine->n_decode_tokens += 1 + n_accepted;
    if (!moe_session_is_full(session)) {
        moe_session_append_sampled(session, d->next);
    }
    return MOE_OK;
}

/* After a pass that succeeded: marks the rows as evaluated. */
static int advance(moe_step_work *s, moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t n = s->n_rows_of[i];
        if (n == 0) {
            continue;
        }
        if (moe_session_has_tree(session)) {
            int committed = commit_tree(session, status == MOE_OK ? err : NULL);
            status = status != MOE_OK ? status : committed;
            continue;
        }
        uint32_t n_sampled = session->n_sampled_pending;
        session->n_sampled_pending = 0;
        session->n_evaluated += n;
        moe_kv_table_advance(&s->engine->kv, &session->kv, session->n_evaluated - n,
                             session->n_evaluated);
        moe_state_table_commit(&s->engine->states, &session->states, session->n_evaluated);
        if (session->n_evaluated > session->replay_end) {
            session->has_logits = moe_session_n_unevaluated(session) == 0;
        }
        s->engine->n_decode_tokens += n_sampled;
        s->engine->n_prompt_tokens += n - n_sampled;
    }
    return status;
}

void moe_step_sample(const moe_step_work *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        if (!session->has_logits || moe_session_n_unevaluated(session) > 0 ||
            session->evaluate_only || moe_session_is_full(session)) {
            continue;
        }
        int32_t token = moe_sampler_next(&session->sampler, session->logits, session->tokens,
                                         session->n_tokens);
        moe_session_append_sampled(session, token);
    }
}

/* True if every row belongs to a session that writes. */
static bool is_decoding(const moe_step_work *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        const moe_session *session = s->sessions[i];
        if (s->n_rows_of[i] > 0 && !moe_session_has_tree(session) &&
            (session->n_sampled_pending == 0 || moe_session_n_unevaluated(session) != 1)) {
            return false;
        }
    }
    return true;
}

/* True if a row belongs to a session of which few positions were compared with the exact pass so
 * far. */
static bool is_beginning(const moe_step_work *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        if (s->n_rows_of[i] > 0 && s->sessions[i]->n_lossy < MOE_QUALITY_FIRST_POSITIONS) {
            return true;
        }
    }
    return false;
}

/* Marks rows whose results may differ from an exact run's. Called after a pass and before its rows
 * count as evaluated. */
static void mark_rows(const moe_step_work *s, bool lossy)
{
    uint32_t marks = (s->engine->marks & ~MOE_SESSION_LOSSY) | (lossy ? MOE_SESSION_LOSSY : 0);
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t had = moe_session_marks(session);
        if (marks != 0 && s->n_rows_of[i] > 0 &&
            (had == 0 || session->n_evaluated < session->marked_from)) {
            session->marked_from = session->n_evaluated;
        }
        session->marks = s->n_rows_of[i] > 0 ? had | marks : had;
        session->n_lossy += lossy ? s->n_rows_of[i] : 0;
    }
}

/* Keeps the rows' hidden states for a drafting layer, while the pass's buffers still hold them. */
static int keep_states(const moe_step_work *s, moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < s->n_sessions && status == MOE_OK; i++) {
        const moe_session *session = s->sessions[i];
        moe_session_draft *d = session->draft;
        if (d->head != NULL) {
            d->line.tokens = session->tokens;
            d->line.n_tokens = session->n_tokens;
            d->line.n_evaluated = session->n_evaluated;
            status = moe_speculation_keep_states(s->engine->speculation, d, s->first_row[i],
                                                 s->n_rows_of[i], err);
            d->line.n_evaluated = session->n_evaluated;
        }
    }
    return status;
}

/* Runs the pass, a lossy one if the modes act, and reports its cost to speculation. Scoring given
 * tokens is verification: lossy modes act on it, so that a text's perplexity under them can be
 * measured. */
static int run_pass(moe_step_work *s, moe_pass *pass, bool scores, moe_error *err)
{
    moe_engine *engine = s->engine;
    bool lossy = moe_lossy_acts(engine->lossy) && (scores || is_decoding(s));
    pass->kind = lossy ? MOE_PASS_LOSSY : MOE_PASS_EXACT;
    uint64_t begin = moe_now_ns();
    uint64_t waited =
        engine->speculation != NULL ? moe_expert_store_wait_ns(engine->runner.experts) : 0;
    int status = lossy ? moe_lossy_run(engine->lossy, pass, is_beginning(s), err)
                       : moe_pass_run(&engine->runner, pass, err);
    if (status == MOE_OK) {
        mark_rows(s, lossy);
    }
    if (status == MOE_OK && engine->speculation != NULL) {
        uint32_t n_emitted = 0;
        for (size_t i = 0; i < s->n_sessions; i++) {
            const moe_session_draft *d = s->sessions[i]->draft;
            n_emitted += d->active ? 1 + d->tree.nodes[d->current].depth : 0;
        }
        status = keep_states(s, err);
        moe_speculation_note_accepted(engine->speculation, s->drafts, s->n_sessions, s->first_row,
                                      s->n_rows_of);
        moe_speculation_end(engine->speculation, s->n_rows, n_emitted, s->n_tree_rows,
                            moe_now_ns() - begin,
                            moe_expert_store_wait_ns(engine->runner.experts) - waited);
    }
    return status;
}

/* After an error in reading the model's files, or in computing with their bytes: if the files have
 * changed since they were opened, reports that instead. */
static int check_files(moe_engine *engine, int status, moe_error *err)
{
    bool suspicious = status == MOE_ERR_IO || status == MOE_ERR_FORMAT;
    if (status != MOE_OK && !suspicious) {
        return status;
    }
    int changed = moe_engine_look_at_files(engine, suspicious, err);
    return changed != MOE_OK ? changed : status;
}

static int list_drafts(moe_step_work *s, moe_error *err)
{
    if (s->engine->speculation == NULL || s->drafts != NULL) {
        return MOE_OK;
    }
    s->drafts = moe_calloc(s->n_sessions, sizeof *s->drafts);
    if (s->drafts == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for drafts of %zu sessions", s->n_sessions);
    }
    for (size_t i = 0; i < s->n_sessions; i++) {
        s->drafts[i] = s->sessions[i]->draft;
    }
    return MOE_OK;
}

static int run_chunk(const moe_step_work *s, const moe_pass *pass, moe_error *err)
{
    const moe_panel_chunk *panel = s->panel;
    const bool routes = panel->part == MOE_PANEL_LAYER || panel->part == MOE_PANEL_MIX;
    moe_speculation *speculation = routes ? s->engine->speculation : NULL;
    if (speculation != NULL) {
        moe_speculation_begin_chunk(speculation, panel->layer);
    }
    int status = moe_panel_run_chunk(&s->engine->runner, pass, err);
    if (speculation != NULL) {
        moe_speculation_end_chunk(speculation, pass->n_rows);
    }
    return status;
}

/* Requests the table rows that a prompt's rows will read, then those that its next rows will
 * read. */
static void foresee_rows(const moe_step_work *s)
{
    const moe_runner *runner = &s->engine->runner;
    for (size_t i = 0; i < s->n_sessions && runner->ngrams != NULL; i++) {
        const moe_session *session = s->sessions[i];
        if (s->n_rows_of[i] > 1 && !moe_session_has_tree(session)) {
            const uint32_t first = s->kv_rows[s->first_row[i]].position;
            const uint32_t end = first + 2 * s->n_rows_of[i];
            moe_ngrams_foresee(runner, session->tokens, first,
                               end < session->n_tokens ? end : session->n_tokens);
        }
    }
}

static int run_rows(moe_step_work *s, bool all_logits, moe_row_logits_fn on_logits, void *user,
                    moe_error *err)
{
    int status = moe_step_prepare(s, all_logits, err);
    if (status != MOE_OK || s->n_rows == 0) {
        return status;
    }
    status = moe_engine_look_at_files(s->engine, false, err);
    status = status == MOE_OK ? allocate_logits(s, err) : status;
    status = status == MOE_OK && s->panel == NULL ? list_drafts(s, err) : status;
    moe_pass pass = {.panel = s->panel,
                     .n_rows = s->n_rows,
                     .tokens = s->tokens,
                     .kv_rows = s->kv_rows,
                     .row_ids = s->row_ids,
                     .depths = s->depths,
                     .state_runs = s->state_runs,
                     .n_state_runs = s->n_state_runs,
                     .logit_rows = s->logit_rows,
                     .n_logit_rows = s->n_logit_rows,
                     .on_logits = on_logits,
                     .user = user,
                     .is_cancelled = step_is_cancelled,
                     .cancel_user = s};
    if (status == MOE_OK) {
        foresee_rows(s);
        status = s->panel != NULL ? run_chunk(s, &pass, err) : run_pass(s, &pass, all_logits, err);
    }
    status = check_files(s->engine, status, err);
    return status != MOE_OK || s->panel != NULL ? status : advance(s, err);
}

int moe_step_run(moe_step_work *s, bool all_logits, moe_row_logits_fn on_logits, void *user,
                 moe_error *err)
{
    moe_idle_checksums *idle = s->engine->idle_checksums;
    moe_idle_checksums_pause(idle);
    int status = run_rows(s, all_logits, on_logits, user, err);
    moe_idle_checksums_resume(idle);
    return status;
}

/* Drops the trees after a failed step, so that the next drafts are as if it had not run. */
static void forget_trees(const moe_step_work *s, int status)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session_draft *d = s->sessions[i]->draft;
        if (d != NULL) {
            d->active = false;
            d->random = status == MOE_OK ? d->random : d->random_before;
        }
    }
}

/* Describes the session to its drafts, with room for them behind the timeline's end. */
static int describe_timeline(moe_session *session, moe_error *err)
{
    const moe_engine *engine = session->engine;
    moe_session_draft *d = session->draft;
    d->line = (moe_draft_line){.n_tokens = session->n_tokens,
                               .n_evaluated = session->n_evaluated,
                               .writes = session->n_sampled_pending == 1 &&
                                         session->n_tokens - session->n_evaluated == 1 &&
                                         !session->evaluate_only,
                               .ends = moe_session_is_full(session),
                               .left = engine->context - session->n_tokens};
    uint32_t room = moe_speculation_room(engine->speculation, &d->line);
    int status = room > 0 ? moe_session_reserve(session, room, err) : MOE_OK;
    d->line.tokens = session->tokens;
    return status;
}

static int draft(moe_step_work *s, moe_error *err)
{
    moe_speculation *speculation = s->engine->speculation;
    if (speculation == NULL) {
        return MOE_OK;
    }
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session_draft *d = s->sessions[i]->draft;
        d->random_before = d->random;
    }
    uint32_t n_busy = 0;
    int status = list_drafts(s, err);
    for (size_t i = 0; i < s->n_sessions && status == MOE_OK; i++) {
        n_busy += moe_session_n_unevaluated(s->sessions[i]) > 0;
        status = describe_timeline(s->sessions[i], err);
    }
    if (status == MOE_OK) {
        status = moe_speculation_draft(speculation, s->drafts, s->n_sessions, n_busy, err);
    }
    status = check_files(s->engine, status, err);
    if (status == MOE_ERR_BUDGET) {
        forget_trees(s, status); /* no memory for drafts: this step decodes without them */
        status = MOE_OK;
    }
    return status;
}

static void remember_numbers(moe_session *const *sessions, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sessions[i]->random_before = sessions[i]->sampler.random;
        sessions[i]->n_tokens_before = sessions[i]->n_tokens;
    }
}

/* After a failed step, gives random numbers back: a session that got no token uses the same numbers
 * the next time. */
static void give_back_numbers(moe_session *const *sessions, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (sessions[i]->n_tokens == sessions[i]->n_tokens_before) {
            sessions[i]->sampler.random = sessions[i]->random_before;
        }
    }
}

int moe_step_pass(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    moe_step_work s = {.engine = engine, .sessions = sessions, .n_sessions = n};
    remember_numbers(sessions, n);
    int status = draft(&s, err);
    if (status == MOE_OK) {
        status = moe_step_run(&s, false, moe_step_keep_logits, &s, err);
    }
    if (status == MOE_ERR_BUDGET && s.n_tree_rows > 0) {
        /* There is no memory for the drafts' rows; a step without drafts may fit. */
        forget_trees(&s, status);
        moe_step_free(&s);
        s = (moe_step_work){.engine = engine, .sessions = sessions, .n_sessions = n};
        status = moe_step_run(&s, false, moe_step_keep_logits, &s, err);
    }
    forget_trees(&s, status);
    if (status == MOE_OK) {
        moe_step_sample(&s);
    } else {
        give_back_numbers(sessions, n);
    }
    moe_step_free(&s);
    return status;
}

int moe_step_take_panel(moe_engine *engine, uint32_t n_rows, moe_error *err)
{
    moe_panel *p = &engine->panel;
    int status = MOE_OK;
    for (uint32_t i = 0; i < p->n_prompts && status == MOE_OK; i++) {
        const moe_panel_prompt *prompt = &p->prompts[i];
        uint32_t left = n_rows > prompt->first ? n_rows - prompt->first : 0;
        uint32_t n = left < prompt->n_rows ? left : prompt->n_rows;
        uint32_t first = 0;
        moe_step_work s = {.engine = engine,
                           .sessions = &prompt->session,
                           .n_sessions = 1,
                           .n_rows_of = &n,
                           .first_row = &first,
                           .n_rows = n};
        if (prompt->session != NULL) {
            mark_rows(&s, false);
            status = advance(&s, err);
        }
    }
    moe_panel_drop(engine);
    return status;
}
