/* SPDX-License-Identifier: MIT */
/* One step: which rows of which sessions, one pass, then the sampler of every session that has
 * nothing left to evaluate. With speculation a session that writes has the nodes of its token tree
 * for rows, and the walk through the tree takes the sampler's place. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine_internal.h"

/* The rows of a step. Sessions are the caller's array. */
typedef struct step {
    moe_engine *engine;
    moe_session *const *sessions;
    size_t n_sessions;
    uint32_t *n_rows_of; /* [n_sessions] */
    uint32_t *first_row; /* [n_sessions] */
    uint32_t n_rows;
    uint32_t n_tree_rows;
    uint32_t *depths; /* [n_rows] in a tree, else 0 */
    int32_t *tokens;
    moe_kv_row *kv_rows;
    moe_row_id *row_ids;
    uint32_t *logit_rows;
    uint32_t n_logit_rows;
    size_t *session_of;        /* [n_rows] */
    moe_state_run *state_runs; /* [n_sessions] */
    uint32_t n_state_runs;
} step;

/* The session's rows are its token tree's. */
static bool has_tree(const moe_session *session)
{
    return session->draft != NULL && session->draft->active;
}

/* Rows that a session must have in this step. */
static uint32_t n_due(const moe_session *session)
{
    return has_tree(session) ? session->draft->tree.n : moe_session_n_unevaluated(session) > 0;
}

/* Every session is one of this engine, and stands in the list once. */
static int check_sessions(const moe_engine *engine, moe_session *const *sessions, size_t n,
                          moe_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (sessions[i] == NULL) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "session %zu is NULL", i);
        }
        if (sessions[i]->engine != engine) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "session %zu belongs to another engine", i);
        }
        for (size_t k = 0; k < i; k++) {
            if (sessions[k] == sessions[i]) {
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
        s->n_rows_of[i] = n_due(s->sessions[i]);
        n_active += s->n_rows_of[i];
        s->n_tree_rows += has_tree(s->sessions[i]) ? s->n_rows_of[i] : 0;
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
        uint32_t more = has_tree(s->sessions[i])
                            ? 0
                            : moe_session_n_unevaluated(s->sessions[i]) - s->n_rows_of[i];
        more = more < left ? more : left;
        s->first_row[i] = s->n_rows;
        s->n_rows_of[i] += more;
        s->n_rows += s->n_rows_of[i];
        left -= more;
    }
    return MOE_OK;
}

/* Stored positions behind those evaluated that the step writes. A lossy pass that is compared with
 * the exact one has both side by side. */
static uint32_t n_places(const step *s, size_t i)
{
    return s->engine->lossy != NULL ? 2 * s->n_rows_of[i] : s->n_rows_of[i];
}

/* Memory for all that the step will write, and for the token that each session will sample; what
 * is evaluated of a prompt in later steps keeps what feeding it was granted. */
static int grant_memory(step *s, moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < s->n_sessions && status == MOE_OK; i++) {
        moe_session *session = s->sessions[i];
        uint32_t n_more = session->evaluate_only || moe_session_is_full(session)
                              ? 0
                              : 1 + (has_tree(session) ? s->n_rows_of[i] : 0);
        uint32_t end = session->n_evaluated + n_places(s, i);
        uint32_t n_tokens = session->n_tokens + n_more;
        status = moe_session_grant(session, n_tokens, end > n_tokens ? end : n_tokens, err);
    }
    for (size_t i = 0; i < s->n_sessions && status != MOE_OK; i++) {
        moe_session *session = s->sessions[i];
        (void)moe_session_grant(session, session->n_tokens, session->n_tokens, NULL);
    }
    if (status != MOE_OK) {
        moe_session_give_back_pages(s->engine);
    }
    return status;
}

static int reserve_pages(step *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t end = session->n_evaluated + n_places(s, i);
        int status = s->n_rows_of[i] == 0 ? MOE_OK
                                          : moe_kv_table_reserve(&s->engine->kv, &session->kv,
                                                                 session->n_evaluated, end, err);
        if (status != MOE_OK) {
            return status;
        }
    }
    return MOE_OK;
}

static void fill_tree_rows(step *s, size_t i)
{
    const moe_session *session = s->sessions[i];
    for (uint32_t node = 0; node < s->n_rows_of[i]; node++) {
        uint32_t row = s->first_row[i] + node;
        const moe_tree_node *at = &session->draft->tree.nodes[node];
        s->tokens[row] = at->token;
        s->kv_rows[row] = moe_speculation_row(session, node);
        s->row_ids[row] = (moe_row_id){session->number, s->kv_rows[row].position};
        s->depths[row] = at->depth;
        s->session_of[row] = i;
        s->logit_rows[s->n_logit_rows++] = row;
    }
}

static void fill_rows(step *s, bool all_logits)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        const moe_session *session = s->sessions[i];
        uint32_t row = s->first_row[i];
        if (s->n_rows_of[i] > 0) {
            s->state_runs[s->n_state_runs++] = moe_state_table_run(
                &s->sessions[i]->states, row, s->n_rows_of[i], has_tree(session));
        }
        if (has_tree(session)) {
            fill_tree_rows(s, i);
            continue;
        }
        for (uint32_t r = 0; r < s->n_rows_of[i]; r++, row++) {
            uint32_t position = session->n_evaluated + r;
            s->tokens[row] = session->tokens[position];
            s->kv_rows[row] = moe_kv_row_at(session->kv.addresses, position);
            s->row_ids[row] = (moe_row_id){session->number, position};
            s->session_of[row] = i;
            if (position >= session->replay_end &&
                (all_logits || position + 1 == session->n_tokens)) {
                s->logit_rows[s->n_logit_rows++] = row;
            }
        }
    }
}

static void step_free(step *s)
{
    free(s->n_rows_of);
    free(s->first_row);
    free(s->depths);
    free(s->tokens);
    free(s->kv_rows);
    free(s->row_ids);
    free(s->logit_rows);
    free(s->session_of);
    free(s->state_runs);
}

static int step_prepare(step *s, bool all_logits, moe_error *err)
{
    s->n_rows_of = moe_calloc(s->n_sessions, sizeof *s->n_rows_of);
    s->first_row = moe_calloc(s->n_sessions, sizeof *s->first_row);
    if (s->n_rows_of == NULL || s->first_row == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %zu sessions", s->n_sessions);
    }
    int status = share_rows(s, err);
    if (status != MOE_OK) {
        return status;
    }
    s->tokens = moe_calloc(s->n_rows, sizeof *s->tokens);
    s->kv_rows = moe_calloc(s->n_rows, sizeof *s->kv_rows);
    s->row_ids = moe_calloc(s->n_rows, sizeof *s->row_ids);
    s->logit_rows = moe_calloc(s->n_rows, sizeof *s->logit_rows);
    s->session_of = moe_calloc(s->n_rows, sizeof *s->session_of);
    s->depths = moe_calloc(s->n_rows, sizeof *s->depths);
    s->state_runs = moe_calloc(s->n_sessions, sizeof *s->state_runs);
    if (s->state_runs == NULL || s->depths == NULL || s->tokens == NULL || s->kv_rows == NULL ||
        s->row_ids == NULL || s->logit_rows == NULL || s->session_of == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %u rows", s->n_rows);
    }
    status = grant_memory(s, err);
    if (status == MOE_OK) {
        status = reserve_pages(s, err);
    }
    if (status == MOE_OK) {
        fill_rows(s, all_logits);
    }
    return status;
}

static bool step_is_cancelled(void *user)
{
    const step *s = user;
    const moe_wait_cancel *engine = &s->engine->cancel;
    bool cancelled = engine->is_cancelled != NULL && engine->is_cancelled(engine->user);
    for (size_t i = 0; i < s->n_sessions; i++) {
        cancelled |= atomic_load_explicit(&s->sessions[i]->cancelled, memory_order_relaxed);
    }
    return cancelled;
}

/* Answers requests to cancel: those sessions leave the list. Returns how many are left. */
static size_t leave_out_cancelled(moe_session **sessions, size_t n)
{
    size_t n_left = 0;
    for (size_t i = 0; i < n; i++) {
        sessions[i]->was_cancelled = atomic_exchange(&sessions[i]->cancelled, false);
        if (!sessions[i]->was_cancelled) {
            sessions[n_left++] = sessions[i];
        }
    }
    return n_left;
}

static int allocate_logits(const step *s, moe_error *err)
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

static bool keep_logits(uint32_t row, const float *logits, void *user)
{
    const step *s = user;
    size_t i = s->session_of[row];
    moe_session *session = s->sessions[i];
    if (has_tree(session)) {
        moe_speculation_visit(session, row - s->first_row[i], logits);
        return true;
    }
    session->has_logits = false; /* until the step has succeeded */
    memcpy(session->logits, logits, s->engine->config.n_vocab * sizeof *logits);
    return true;
}

/* The pass has succeeded: the rows are part of the timelines' past. */
static int advance(step *s, moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t n = s->n_rows_of[i];
        if (n == 0) {
            continue;
        }
        if (has_tree(session)) {
            int settled = moe_speculation_settle(session, status == MOE_OK ? err : NULL);
            status = status != MOE_OK ? status : settled;
            continue;
        }
        uint32_t n_sampled = session->n_sampled_pending;
        session->n_sampled_pending = 0;
        session->n_evaluated += n;
        moe_state_table_commit(&s->engine->states, &session->states, session->n_evaluated);
        if (session->n_evaluated > session->replay_end) {
            session->has_logits = moe_session_n_unevaluated(session) == 0;
        }
        s->engine->n_decode_tokens += n_sampled;
        s->engine->n_prompt_tokens += n - n_sampled;
    }
    return status;
}

/* Also where this step had nothing to evaluate: a timeline cut back to its last logits goes on from
 * them. */
static int sample(step *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        if (!session->has_logits || moe_session_n_unevaluated(session) > 0 ||
            session->evaluate_only || moe_session_is_full(session)) {
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

/* Every row is one of a session that writes. */
static bool is_decoding(const step *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        const moe_session *session = s->sessions[i];
        if (s->n_rows_of[i] > 0 && !has_tree(session) &&
            (session->n_sampled_pending == 0 || moe_session_n_unevaluated(session) != 1)) {
            return false;
        }
    }
    return true;
}

/* The pass has a row of a session of which few positions were compared with the exact pass. */
static bool is_beginning(const step *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        if (s->n_rows_of[i] > 0 && s->sessions[i]->n_lossy < MOE_QUALITY_FIRST_POSITIONS) {
            return true;
        }
    }
    return false;
}

static void count_lossy_rows(step *s)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        s->sessions[i]->n_lossy += s->n_rows_of[i];
    }
}

/* The pass, lossy where that is asked for; its cost goes to speculation. Scoring given tokens is
 * verification: lossy modes act on it, so that a text's perplexity under them can be told. */
static int run_pass(step *s, moe_pass *pass, bool scores, moe_error *err)
{
    moe_engine *engine = s->engine;
    bool lossy = moe_lossy_acts(engine->lossy) && (scores || is_decoding(s));
    pass->kind = lossy ? MOE_PASS_LOSSY : MOE_PASS_EXACT;
    uint64_t begin = moe_now_ns();
    uint64_t waited =
        engine->speculation != NULL ? moe_expert_store_wait_ns(engine->runner.experts) : 0;
    int status = lossy ? moe_metered_pass(engine, pass, is_beginning(s), err)
                       : moe_pass_run(&engine->runner, pass, err);
    if (status == MOE_OK && lossy) {
        count_lossy_rows(s);
    }
    if (status == MOE_OK && engine->speculation != NULL) {
        uint32_t n_emitted = 0;
        for (size_t i = 0; i < s->n_sessions; i++) {
            const moe_session_draft *d = s->sessions[i]->draft;
            n_emitted += d->active ? 1 + d->tree.nodes[d->current].depth : 0;
        }
        moe_speculation_stood(engine, s->sessions, s->n_sessions, s->first_row, s->n_rows_of);
        moe_speculation_end(engine, s->n_rows, n_emitted, s->n_tree_rows, moe_now_ns() - begin,
                            moe_expert_store_wait_ns(engine->runner.experts) - waited);
    }
    return status;
}

/* What became of reading the model's files, or of computing with what was read: if they are no
 * longer those that were opened, that is the reason to be told. */
static int judge_files(moe_engine *engine, int status, moe_error *err)
{
    bool suspicious = status == MOE_ERR_IO || status == MOE_ERR_FORMAT;
    if (status != MOE_OK && !suspicious) {
        return status;
    }
    int changed = moe_file_watch_look(&engine->files, suspicious, err);
    return changed != MOE_OK ? changed : status;
}

static int run_step(step *s, bool all_logits, moe_row_logits_fn on_logits, void *user,
                    moe_error *err)
{
    int status = step_prepare(s, all_logits, err);
    if (status != MOE_OK || s->n_rows == 0) {
        return status;
    }
    status = moe_file_watch_look(&s->engine->files, false, err);
    status = status == MOE_OK ? allocate_logits(s, err) : status;
    moe_pass pass = {.n_rows = s->n_rows,
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
        status = run_pass(s, &pass, all_logits, err);
    }
    status = judge_files(s->engine, status, err);
    return status != MOE_OK ? status : advance(s, err);
}

/* A step that failed leaves no tree behind, and drafts as if it had not been. */
static void forget_trees(const step *s, int status)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session_draft *d = s->sessions[i]->draft;
        if (d != NULL) {
            d->active = false;
            d->random = status == MOE_OK ? d->random : d->random_before;
        }
    }
}

static int draft(step *s, moe_error *err)
{
    if (s->engine->speculation == NULL) {
        return MOE_OK;
    }
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session_draft *d = s->sessions[i]->draft;
        d->random_before = d->random;
    }
    int status = moe_speculation_draft(s->engine, s->sessions, s->n_sessions, err);
    status = judge_files(s->engine, status, err);
    if (status == MOE_ERR_BUDGET) {
        forget_trees(s, status); /* no memory to draft: plain decoding */
        status = MOE_OK;
    }
    return status;
}

static int try_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    step s = {.engine = engine, .sessions = sessions, .n_sessions = n};
    int status = draft(&s, err);
    if (status == MOE_OK) {
        status = run_step(&s, false, keep_logits, &s, err);
    }
    if (status == MOE_ERR_BUDGET && s.n_tree_rows > 0) {
        /* The drafts do not fit: a plain step may. */
        forget_trees(&s, status);
        step_free(&s);
        s = (step){.engine = engine, .sessions = sessions, .n_sessions = n};
        status = run_step(&s, false, keep_logits, &s, err);
    }
    forget_trees(&s, status);
    if (status == MOE_OK) {
        status = sample(&s, err);
    }
    step_free(&s);
    return status;
}

/* Again without those that are cancelled meanwhile, until a step comes to its end. */
static int step_uncancelled(moe_engine *engine, moe_session **sessions, size_t n, moe_error *err)
{
    size_t n_left = leave_out_cancelled(sessions, n);
    int status = MOE_OK;
    do {
        if (n_left == 0 && n > 0) {
            return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        }
        n = n_left;
        status = try_step(engine, sessions, n, err);
        n_left = status == MOE_ERR_CANCELLED ? leave_out_cancelled(sessions, n) : n;
    } while (n_left < n);
    return status;
}

int moe_step(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err)
{
    if (engine == NULL || (sessions == NULL && n > 0)) {
        return moe_fail_null(err, "moe_step", "engine or sessions");
    }
    int status = check_sessions(engine, sessions, n, err);
    if (status != MOE_OK) {
        return status;
    }
    moe_session *few[8];
    moe_session **list = n <= sizeof few / sizeof few[0] ? few : moe_calloc(n, sizeof *list);
    if (list == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %zu sessions", n);
    }
    for (size_t i = 0; i < n; i++) {
        list[i] = sessions[i];
    }
    status = step_uncancelled(engine, list, n, err);
    if (list != few) {
        free(list);
    }
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
    if (session == NULL || visit == NULL || (tokens == NULL && n > 0)) {
        return moe_fail_null(err, "moe_session_score", "session, tokens or visit");
    }
    if (moe_session_n_pending(session) > 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the session has %zu tokens that are not evaluated; step it first",
                        moe_session_n_pending(session));
    }
    int status = moe_session_feed(session, tokens, n, err);
    if (status == MOE_OK && leave_out_cancelled(&session, 1) == 0) {
        status = moe_fail(err, MOE_ERR_CANCELLED, "scoring was cancelled");
    }
    scoring scores = {.visit = visit, .user = user};
    while (status == MOE_OK && moe_session_n_unevaluated(session) > 0 && !scores.stopped) {
        step s = {.engine = session->engine, .sessions = &session, .n_sessions = 1};
        scores.step = &s;
        status = run_step(&s, true, visit_logits, &scores, err);
        step_free(&s);
    }
    if (status == MOE_ERR_CANCELLED && !session->was_cancelled) {
        (void)leave_out_cancelled(&session, 1);
    }
    if (status == MOE_OK && scores.stopped) {
        /* The pass went on behind the position that was the last to be wanted. */
        moe_session_truncate(session, scores.n_visited, NULL);
        session->has_logits = true;
    } else if (moe_session_n_pending(session) > 0) {
        moe_session_truncate(session, session->n_tokens - moe_session_n_pending(session), NULL);
    }
    return status;
}
