/* SPDX-License-Identifier: MIT */
/* A session's line of drafted tokens: it follows the text, and gives rows to draft passes. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/draft/drafters.h"
#include "runtime/draft/lookahead.h"

/* The draft of position p is stored at p + SHIFT. */
#define SHIFT 1u

int moe_ahead_line_create(moe_ahead_line **out, const moe_model_config *c, moe_error *err)
{
    moe_ahead_line *line = moe_calloc(1, sizeof *line);
    bool complete = line != NULL;
    for (uint32_t i = 0; complete && i <= MOE_MOST_AHEAD + 1; i++) {
        moe_ahead_token *token = i <= MOE_MOST_AHEAD ? &line->tokens[i] : &line->wrong;
        token->names = moe_calloc((size_t)c->n_layer * c->n_expert_used, sizeof *token->names);
        complete = token->names != NULL;
    }
    *out = line;
    if (!complete) {
        moe_ahead_line_free(out);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's lookahead");
    }
    return MOE_OK;
}

void moe_ahead_line_free(moe_ahead_line **line_ptr)
{
    moe_ahead_line *line = *line_ptr;
    if (line == NULL) {
        return;
    }
    for (uint32_t i = 0; i <= MOE_MOST_AHEAD; i++) {
        free(line->tokens[i].names);
    }
    free(line->wrong.names);
    free(line);
    *line_ptr = NULL;
}

/* ---- Which drafted tokens were right ---- */

/* Whether the token behind the line's end is being computed by the draft pass that runs in
 * pieces. */
static bool is_running(const moe_speculation *s, const moe_ahead_line *line)
{
    const moe_ahead_pieces *p = &s->ahead->pieces;
    return p->n_rows > 0 && line->running == p->number;
}

/* Removes the line's first token; its memory is reused at the end of the array. */
static void drop_first(moe_ahead_line *line)
{
    moe_ahead_token first = line->tokens[0];
    memmove(line->tokens, line->tokens + 1, MOE_MOST_AHEAD * sizeof line->tokens[0]);
    line->tokens[MOE_MOST_AHEAD] = first;
    line->first++;
    line->log_first++;
    line->n--;
}

/* Compares the line's first token with the text's token. If it is wrong, the whole line is
 * dropped, and the token is kept for scoring its experts. */
static bool first_stands(moe_speculation *s, moe_ahead_line *line, int32_t token)
{
    moe_ahead_token *first = &line->tokens[0];
    bool stands = first->token == token;
    if (!first->is_known) {
        moe_lookahead_note_token(&s->ahead->chances, first->confidence, stands);
        s->stats.lookahead_tokens++;
        s->stats.lookahead_stood += stands;
        first->is_known = true;
    }
    if (!stands) {
        moe_ahead_token wrong = line->wrong;
        line->wrong = *first;
        *first = wrong;
        line->has_wrong = line->n > 0;
        line->n = 0;
        line->running = 0;
    }
    return stands;
}

/* Returns how many of the line's tokens fit into the session's pages. */
static uint32_t n_stored(const moe_session_draft *d)
{
    uint64_t end = (uint64_t)d->kv->n_pages * MOE_KV_PAGE;
    uint64_t first = (uint64_t)d->ahead->first + SHIFT;
    return end <= first ? 0 : (uint32_t)(end - first);
}

/* Returns how many of the line's keys and values still exist. Rows of a draft that is verified
 * overwrite them, and pages behind the timeline's end may have been freed. */
static uint32_t n_intact(const moe_session_draft *d)
{
    return d->tree.n > 1 ? 0 : n_stored(d);
}

/* Sets the token with which the line continues, if it is not known. */
static void choose_next(const moe_speculation *s, moe_ahead_line *line, uint32_t at, int32_t token)
{
    if (line->n == 0) {
        line->first = at;
        line->log_first = s->ahead->log_at;
        line->next = token;
        line->next_confidence = 1;
    } else if (line->next == MOE_TOKEN_NONE) {
        line->n--; /* its row runs again, to find what follows it */
        line->next = line->tokens[line->n].token;
        line->next_confidence = line->tokens[line->n].confidence;
    }
}

bool moe_ahead_looks(const moe_draft_line *line)
{
    return line->n_tokens == line->n_evaluated + 1 && !line->ends;
}

void moe_ahead_follow_text(moe_speculation *s, moe_session_draft *d)
{
    moe_ahead_line *line = d->ahead;
    uint32_t at = d->line.n_tokens - 1;
    uint32_t n_kept = n_intact(d);
    line->has_wrong = false;
    line->running = is_running(s, line) ? line->running : 0;
    if (line->first > at) {
        line->n = 0;
        line->running = 0;
    }
    while (line->n > 0 && line->first < at && first_stands(s, line, d->line.tokens[line->first])) {
        drop_first(line);
        n_kept = n_kept > 0 ? n_kept - 1 : 0;
    }
    line->has_wrong = false; /* of an earlier position */
    if (line->first < at && line->n == 0) {
        line->running = 0; /* the text has overtaken it */
    } else if (line->n > 0 || line->running != 0) {
        (void)first_stands(s, line, d->line.tokens[at]);
    }
    if (line->n > n_kept) {
        line->n = n_kept;
        line->next = MOE_TOKEN_NONE;
        line->running = 0;
    } else if (line->n == n_kept) {
        line->running = 0;
    }
    if (line->running == 0) {
        choose_next(s, line, at, d->line.tokens[at]);
    }
    for (uint32_t i = 1; i < line->n + (line->running != 0); i++) {
        d->line.tokens[line->first + i] = line->tokens[i].token;
    }
}

/* ---- Rows ---- */

static bool can_go_on(const moe_speculation *s, const moe_session_draft *d)
{
    const moe_ahead_line *line = d->ahead;
    return moe_ahead_looks(&d->line) && line->running == 0 && line->n <= s->ahead->n_ahead &&
           line->n + SHIFT <= d->line.left && line->n < n_stored(d) &&
           (line->n == 0 || !moe_draft_is_end(s, line->next));
}

/* Makes the log of recurrent layers writable, with room for the line's rows. If the session has
 * no log yet, the line has no rows either. A session with lookahead is never parked. */
static int reserve_log(moe_speculation *s, moe_session_draft *d, moe_error *err)
{
    moe_ahead_line *line = d->ahead;
    const uint32_t n_line = s->ahead->n_ahead + 1;
    const uint32_t end = s->ahead->log_at + MOE_AHEAD_LOG_LINES * n_line;
    int status = moe_state_table_reserve(s->runner->states, d->states, err);
    if (status != MOE_OK || d->states->log == NULL) {
        return status;
    }
    if (line->log_first + n_line > end) {
        status = moe_state_table_move_log(s->runner->states, d->states, line->log_first,
                                          s->ahead->log_at, line->n + (line->running != 0), err);
        line->log_first = s->ahead->log_at;
    }
    return status;
}

int moe_ahead_reserve(moe_speculation *s, moe_session_draft *d, moe_error *err)
{
    uint32_t most = s->ahead->n_ahead + SHIFT;
    most = most < d->line.left ? most : d->line.left;
    MOE_TRY(moe_kv_table_reserve(s->runner->kv, d->kv, d->line.n_evaluated,
                                 d->ahead->first + most + 1, err));
    return reserve_log(s, d, err);
}

uint32_t moe_ahead_collect(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                           uint32_t most)
{
    uint32_t n_rows = 0;
    for (size_t i = 0; i < n && n_rows < most; i++) {
        moe_session_draft *d = drafts[i];
        moe_ahead_line *line = d->ahead;
        if (!can_go_on(s, d)) {
            continue;
        }
        moe_ahead_token *token = &line->tokens[line->n];
        token->token = line->next;
        token->confidence = line->next_confidence;
        token->is_known = line->n == 0;
        /* The sampler's penalties for the next token must see this token. */
        d->line.tokens[line->first + line->n] = token->token;
        s->ahead->rows[n_rows] = (moe_ahead_row){d, line->n};
        s->pass_tokens[n_rows] = token->token;
        s->pass_depths[n_rows] = line->n;
        s->pass_logit_rows[n_rows] = n_rows;
        moe_ahead_place_row(s, n_rows++);
    }
    return n_rows;
}

void moe_ahead_place_row(moe_speculation *s, uint32_t r)
{
    const moe_ahead_row *at = &s->ahead->rows[r];
    moe_ahead_line *line = at->draft->ahead;
    for (uint32_t i = 0; i <= at->index; i++) {
        line->path[i] = line->first + i + SHIFT;
    }
    s->pass_kv[r] = (moe_kv_row){.pages = at->draft->kv->addresses,
                                 .position = line->first + at->index,
                                 .stored = line->first + at->index + SHIFT,
                                 .path = line->path,
                                 .path_first = line->first};
    s->pass_states[r] = moe_state_table_draft_row(at->draft->states, r, line->log_first, at->index);
}

bool moe_ahead_take_logits(uint32_t row, const float *hidden, const float *logits, void *user)
{
    (void)hidden;
    moe_speculation *s = user;
    moe_session_draft *d = s->ahead->rows[row].draft;
    moe_ahead_line *line = d->ahead;
    MOE_ASSERT(line->n <= MOE_MOST_AHEAD);
    line->next = moe_draft_predict_token(s, d, line->n, logits, &line->next_confidence);
    line->n++;
    line->running = 0;
    return true;
}
