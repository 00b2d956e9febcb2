/* SPDX-License-Identifier: MIT */
/* Chooses which rows of which sessions a step has, and grants the memory that it will write to. */
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/engine/metadata_notes.h"
#include "runtime/engine/session_panel.h"
#include "runtime/engine/session_timeline.h"
#include "runtime/engine/step_rows.h"

/* Rows that a session needs in this step. */
static uint32_t n_due(const moe_session *session)
{
    return moe_session_has_tree(session) ? session->draft->tree.n
                                         : moe_session_n_unevaluated(session) > 0;
}

/* Returns the position of the step's first row of a session. */
static uint32_t first_position(const moe_step_work *s, const moe_session *session)
{
    const moe_panel_chunk *panel = s->panel;
    return session->n_evaluated +
           (panel != NULL ? panel->first - moe_panel_at_work(s->engine)->first : 0);
}

/* Sets the rows of a panel's chunk, which all belong to one session. */
static void share_chunk(moe_step_work *s)
{
    const moe_panel_block *block = s->panel->block;
    const moe_panel_prompt *prompt = moe_panel_at_work(s->engine);
    uint32_t end = prompt->first + prompt->n_rows;
    if (block != NULL && block->first + block->n_rows < end) {
        end = block->first + block->n_rows;
    }
    uint32_t left = end - s->panel->first;
    uint32_t chunk = s->engine->prefill_chunk;
    s->n_rows = left < chunk ? left : chunk;
    s->n_rows_of[0] = s->n_rows;
}

/* Every session with something to do gets one row; the remaining rows are then given out in order.
 */
static int share_rows(moe_step_work *s, moe_error *err)
{
    uint32_t n_active = 0;
    for (size_t i = 0; i < s->n_sessions; i++) {
        s->n_rows_of[i] = n_due(s->sessions[i]);
        n_active += s->n_rows_of[i];
        s->n_tree_rows += moe_session_has_tree(s->sessions[i]) ? s->n_rows_of[i] : 0;
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
        uint32_t more = moe_session_has_tree(s->sessions[i])
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

/* Returns how many stored positions, from n_evaluated on, the step writes. A lossy pass that is
 * compared with the exact one stores both side by side. */
static uint32_t n_places(const moe_step_work *s, size_t i)
{
    return s->engine->lossy != NULL ? 2 * s->n_rows_of[i] : s->n_rows_of[i];
}

/* Grants memory for everything that the step will write, and for the token that each session will
 * sample. Prompt tokens that only later steps evaluate keep the memory that was granted when they
 * were fed. */
static int grant_memory(moe_step_work *s, moe_error *err)
{
    int status = MOE_OK;
    for (size_t i = 0; i < s->n_sessions && status == MOE_OK; i++) {
        moe_session *session = s->sessions[i];
        uint32_t n_more = session->evaluate_only || moe_session_is_full(session)
                              ? 0
                              : 1 + (moe_session_has_tree(session) ? s->n_rows_of[i] : 0);
        uint32_t end = first_position(s, session) + n_places(s, i);
        uint32_t n_tokens = session->n_tokens + n_more;
        moe_note_missing_index(s->engine, session->n_tokens);
        status = moe_session_grant(session, n_tokens, end > n_tokens ? end : n_tokens, err);
        status = status == MOE_OK ? moe_session_make_room(session, n_more, err) : status;
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

static int reserve_pages(moe_step_work *s, moe_error *err)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        moe_session *session = s->sessions[i];
        uint32_t end = first_position(s, session) + n_places(s, i);
        MOE_TRY(s->n_rows_of[i] == 0 ? MOE_OK
                                     : moe_kv_table_reserve(&s->engine->kv, &session->kv,
                                                            session->n_evaluated, end, err));
    }
    return MOE_OK;
}

static void fill_tree_rows(moe_step_work *s, size_t i)
{
    const moe_session *session = s->sessions[i];
    for (uint32_t node = 0; node < s->n_rows_of[i]; node++) {
        uint32_t row = s->first_row[i] + node;
        const moe_tree_node *at = &session->draft->tree.nodes[node];
        s->tokens[row] = at->token;
        s->kv_rows[row] = moe_speculation_row(session->draft, node);
        s->row_ids[row] = (moe_row_id){session->number, s->kv_rows[row].position};
        s->depths[row] = at->depth;
        s->session_of[row] = i;
        s->logit_rows[s->n_logit_rows++] = row;
    }
}

static moe_state_run chunk_states(const moe_step_work *s)
{
    const moe_panel_prompt *prompt = moe_panel_at_work(s->engine);
    uint32_t chunk = s->engine->prefill_chunk;
    uint32_t n = (prompt->n_rows + chunk - 1) / chunk;
    return moe_state_table_chunk(&s->sessions[0]->states, prompt->state,
                                 (s->panel->first - prompt->first) / chunk, n, s->n_rows);
}

static void fill_rows(moe_step_work *s, bool all_logits)
{
    for (size_t i = 0; i < s->n_sessions; i++) {
        const moe_session *session = s->sessions[i];
        uint32_t row = s->first_row[i];
        if (s->n_rows_of[i] > 0) {
            s->state_runs[s->n_state_runs++] =
                s->panel != NULL
                    ? chunk_states(s)
                    : moe_state_table_run(&s->sessions[i]->states, row, s->n_rows_of[i],
                                          moe_session_has_tree(session));
        }
        if (moe_session_has_tree(session)) {
            fill_tree_rows(s, i);
            continue;
        }
        for (uint32_t r = 0; r < s->n_rows_of[i]; r++, row++) {
            uint32_t position = first_position(s, session) + r;
            s->tokens[row] = session->tokens[position];
            s->kv_rows[row] = moe_kv_row_at(session->kv.addresses, position);
            s->row_ids[row] = (moe_row_id){session->number, position};
            s->session_of[row] = i;
            if (position >= session->replay_end &&
                (all_logits || session->watch != NULL || position + 1 == session->n_tokens)) {
                s->logit_rows[s->n_logit_rows++] = row;
            }
        }
    }
}

void moe_step_free(moe_step_work *s)
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
    free(s->drafts);
}

int moe_step_prepare(moe_step_work *s, bool all_logits, moe_error *err)
{
    s->n_rows_of = moe_calloc(s->n_sessions, sizeof *s->n_rows_of);
    s->first_row = moe_calloc(s->n_sessions, sizeof *s->first_row);
    if (s->n_rows_of == NULL || s->first_row == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a step of %zu sessions", s->n_sessions);
    }
    if (s->panel != NULL) {
        share_chunk(s);
    } else {
        MOE_TRY(share_rows(s, err));
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
    MOE_TRY(grant_memory(s, err));
    MOE_TRY(reserve_pages(s, err));
    fill_rows(s, all_logits);
    return MOE_OK;
}
