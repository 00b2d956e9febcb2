/* SPDX-License-Identifier: MIT */
#include "runtime/draft/lookahead.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/draft/drafters.h"
#include "runtime/pass/runner.h"

/* ---- Memory ---- */

int moe_lookahead_open(moe_lookahead **out, const moe_model_config *c, uint32_t max_rows,
                       uint32_t n_ahead, moe_error *err)
{
    *out = NULL;
    moe_lookahead *a = moe_calloc(1, sizeof *a);
    if (a == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for lookahead");
    }
    size_t n_keys = (size_t)c->n_layer * c->n_expert;
    a->n_ahead = n_ahead;
    a->pass = UINT64_MAX;
    a->rows = moe_calloc(max_rows, sizeof *a->rows);
    a->is_used = moe_calloc(c->n_expert, sizeof *a->is_used);
    a->chance = moe_calloc((n_ahead + 1) * n_keys, sizeof *a->chance);
    int status = a->rows == NULL || a->is_used == NULL || a->chance == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "no memory for lookahead")
                     : moe_lookahead_chances_init(&a->chances, c->n_expert_used, err);
    if (status != MOE_OK) {
        moe_lookahead_close(&a);
    }
    *out = a;
    return status;
}

void moe_lookahead_close(moe_lookahead **lookahead)
{
    moe_lookahead *a = *lookahead;
    if (a == NULL) {
        return;
    }
    moe_lookahead_chances_free(&a->chances);
    free(a->rows);
    free(a->is_used);
    free(a->chance);
    free(a->uses);
    free(a);
    *lookahead = NULL;
}

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

/* ---- What stood of the draft ---- */

/* Removes the line's first token; its memory goes to the end. */
static void drop_first(moe_ahead_line *line)
{
    moe_ahead_token first = line->tokens[0];
    memmove(line->tokens, line->tokens + 1, MOE_MOST_AHEAD * sizeof line->tokens[0]);
    line->tokens[MOE_MOST_AHEAD] = first;
    line->first++;
    line->n--;
}

/* Compares the line's first token with the text's. A wrong one ends the line, and is kept for
 * scoring. */
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
        line->has_wrong = true;
        line->n = 0;
    }
    return stands;
}

/* Rows of a branching or drafted tree overwrite the line's keys and values, and pages behind the
 * timeline's end may have been freed. */
static uint32_t n_intact(const moe_session_draft *d)
{
    uint64_t end = (uint64_t)d->kv->n_pages * MOE_KV_PAGE;
    uint32_t first = d->ahead->first;
    return d->tree.n > 1 || end <= first ? 0 : (uint32_t)(end - first);
}

/* Makes the line begin at the token that has its row in the coming pass, and keeps the tokens that
 * were right. */
static void follow_text(moe_speculation *s, moe_session_draft *d)
{
    moe_ahead_line *line = d->ahead;
    uint32_t at = d->line.n_tokens - 1;
    uint32_t n_kept = n_intact(d);
    line->has_wrong = false;
    if (line->first > at) {
        line->n = 0;
    }
    while (line->n > 0 && line->first < at && first_stands(s, line, d->line.tokens[line->first])) {
        drop_first(line);
        n_kept = n_kept > 0 ? n_kept - 1 : 0;
    }
    line->has_wrong = false; /* of an earlier position */
    if (line->n > 0) {
        (void)first_stands(s, line, d->line.tokens[at]);
    }
    if (line->n > n_kept) {
        line->n = n_kept;
        line->next = MOE_TOKEN_NONE;
    }
    if (line->n == 0) {
        line->first = at;
        line->next = d->line.tokens[at];
        line->next_confidence = 1;
    } else if (line->next == MOE_TOKEN_NONE) {
        line->n--; /* its row runs again, to find what follows it */
        line->next = line->tokens[line->n].token;
        line->next_confidence = line->tokens[line->n].confidence;
    }
    for (uint32_t i = 1; i < line->n; i++) {
        d->line.tokens[line->first + i] = line->tokens[i].token;
    }
}

/* ---- Drafting ---- */

/* One row of the coming pass: a token that was sampled last, or fed alone. */
static bool looks_ahead(const moe_draft_line *line)
{
    return line->n_tokens == line->n_evaluated + 1 && !line->ends;
}

static bool can_go_on(const moe_speculation *s, const moe_session_draft *d)
{
    const moe_ahead_line *line = d->ahead;
    return looks_ahead(&d->line) && line->n <= s->ahead->n_ahead && line->n <= d->line.left &&
           (line->n == 0 || !moe_draft_is_end(s, line->next));
}

/* Gives each line that can continue a row: the token after its last. */
static int collect_rows(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                        uint32_t *n_rows, moe_error *err)
{
    int status = MOE_OK;
    *n_rows = 0;
    for (size_t i = 0; i < n && status == MOE_OK && *n_rows < s->max_rows; i++) {
        moe_session_draft *d = drafts[i];
        moe_ahead_line *line = d->ahead;
        if (!can_go_on(s, d)) {
            continue;
        }
        uint32_t position = line->first + line->n;
        status = moe_kv_table_reserve(s->runner->kv, d->kv, d->line.n_evaluated, position + 1, err);
        if (status != MOE_OK) {
            break;
        }
        moe_ahead_token *token = &line->tokens[line->n];
        token->token = line->next;
        token->confidence = line->next_confidence;
        token->is_known = line->n == 0;
        d->line.tokens[position] = token->token; /* so that the next token's penalties see it */
        s->ahead->rows[*n_rows] = (moe_ahead_row){d, line->n};
        s->pass_tokens[*n_rows] = token->token;
        s->pass_depths[*n_rows] = line->n;
        s->pass_kv[*n_rows] = moe_kv_row_at(d->kv->addresses, position);
        s->pass_logit_rows[*n_rows] = *n_rows;
        (*n_rows)++;
    }
    return status;
}

static bool on_logits(uint32_t row, const float *logits, void *user)
{
    moe_speculation *s = user;
    moe_session_draft *d = s->ahead->rows[row].draft;
    moe_ahead_line *line = d->ahead;
    line->next = moe_draft_predict_token(s, d, line->n, logits, &line->next_confidence);
    line->n++;
    return true;
}

static bool is_cancelled(void *user)
{
    const moe_speculation *s = user;
    bool cancelled = false;
    for (size_t i = 0; i < s->ahead->n_lines; i++) {
        cancelled |= atomic_load_explicit(s->ahead->lines[i]->cancelled, memory_order_relaxed);
    }
    return cancelled;
}

static int run_rows(moe_speculation *s, uint32_t n_rows, moe_error *err)
{
    moe_pass pass = {.kind = MOE_PASS_DRAFT,
                     .n_rows = n_rows,
                     .tokens = s->pass_tokens,
                     .kv_rows = s->pass_kv,
                     .depths = s->pass_depths,
                     .logit_rows = s->pass_logit_rows,
                     .n_logit_rows = n_rows,
                     .on_logits = on_logits,
                     .user = s,
                     .is_cancelled = is_cancelled,
                     .cancel_user = s};
    s->ahead->drafts = true;
    int status = moe_pass_run_draft(s->runner, &pass, err);
    s->ahead->drafts = false;
    s->stats.lookahead_passes++;
    return status;
}

/* ---- Forecasts ---- */

static int add_use(moe_lookahead *a, moe_policy_forecast use, moe_error *err)
{
    if (a->n_uses == a->capacity) {
        size_t capacity = a->capacity == 0 ? 1024 : 2 * a->capacity;
        moe_policy_forecast *uses = moe_realloc_array(a->uses, capacity, sizeof *uses);
        if (uses == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for forecasts");
        }
        a->uses = uses;
        a->capacity = capacity;
    }
    a->uses[a->n_uses++] = use;
    return MOE_OK;
}

/* Forecasts a token's experts, each with the chance that the pass uses it for this or another
 * session. */
static int forecast_token(moe_speculation *s, const moe_ahead_token *token, uint32_t index,
                          double right, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    moe_lookahead *a = s->ahead;
    float *chance_of = a->chance + (size_t)index * c->n_layer * c->n_expert;
    int status = MOE_OK;
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        if (!moe_layer_has_experts(c, layer)) {
            continue;
        }
        for (uint32_t rank = 0; rank < c->n_expert_used && status == MOE_OK; rank++) {
            uint32_t key =
                layer * c->n_expert + token->names[(size_t)layer * c->n_expert_used + rank];
            float chance = (float)moe_lookahead_chance(&a->chances, rank, right);
            if (chance_of[key] == 0) {
                status =
                    add_use(a, (moe_policy_forecast){.key = key, .pass = a->pass + index}, err);
            }
            chance_of[key] = 1 - (1 - chance_of[key]) * (1 - chance);
        }
    }
    return status;
}

static int forecast(moe_speculation *s, moe_session_draft *const *drafts, size_t n, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    moe_lookahead *a = s->ahead;
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const moe_ahead_line *line = drafts[i]->ahead;
        double right = 1;
        for (uint32_t t = 0; looks_ahead(&drafts[i]->line) && t < line->n; t++) {
            const moe_ahead_token *token = &line->tokens[t];
            right *= t == 0 ? 1 : moe_lookahead_stands(&a->chances, token->confidence);
            status = status == MOE_OK ? forecast_token(s, token, t, right, err) : status;
        }
    }
    size_t n_keys = (size_t)c->n_layer * c->n_expert;
    for (size_t i = 0; i < a->n_uses; i++) {
        moe_policy_forecast *use = &a->uses[i];
        float *chance = &a->chance[(use->pass - a->pass) * n_keys + use->key];
        use->chance = *chance;
        *chance = 0;
    }
    return status;
}

int moe_lookahead_run(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                      moe_error *err)
{
    moe_lookahead *a = s->ahead;
    uint64_t begin = moe_now_ns();
    a->lines = drafts;
    a->n_lines = n;
    a->n_uses = 0;
    a->pass = s->runner->n_passes;
    for (size_t i = 0; i < n; i++) {
        if (looks_ahead(&drafts[i]->line)) {
            follow_text(s, drafts[i]);
        } else {
            drafts[i]->ahead->n = 0;
        }
    }
    uint32_t n_rows;
    int status = collect_rows(s, drafts, n, &n_rows, err);
    while (status == MOE_OK && n_rows > 0) {
        status = run_rows(s, n_rows, err);
        if (status == MOE_OK) {
            status = collect_rows(s, drafts, n, &n_rows, err);
        }
    }
    if (status == MOE_OK) {
        status = forecast(s, drafts, n, err);
    }
    for (size_t i = 0; i < n && status != MOE_OK; i++) {
        drafts[i]->ahead->n = 0;
    }
    a->n_uses = status == MOE_OK ? a->n_uses : 0;
    s->stats.lookahead_ns += moe_now_ns() - begin;
    return status;
}

/* ---- For the hook ---- */

void moe_lookahead_name(moe_speculation *s, uint32_t layer, uint32_t row, const uint32_t *experts)
{
    uint32_t n_used = s->runner->config->n_expert_used;
    const moe_ahead_row *at = &s->ahead->rows[row];
    uint16_t *names = at->draft->ahead->tokens[at->index].names + (size_t)layer * n_used;
    for (uint32_t i = 0; i < n_used; i++) {
        names[i] = (uint16_t)experts[i];
    }
}

void moe_lookahead_tell(moe_speculation *s)
{
    moe_lookahead *a = s->ahead;
    bool is_new = a->pass == s->runner->n_passes;
    moe_expert_store_lookahead(s->runner->experts, s->runner->n_passes, a->uses,
                               is_new ? a->n_uses : 0);
}

static void score_token(moe_speculation *s, const moe_ahead_token *token, bool right,
                        uint32_t layer, const uint32_t *chosen)
{
    moe_lookahead *a = s->ahead;
    uint32_t n_used = s->runner->config->n_expert_used;
    const uint16_t *names = token->names + (size_t)layer * n_used;
    for (uint32_t i = 0; i < n_used; i++) {
        a->is_used[chosen[i]] = true;
    }
    for (uint32_t rank = 0; rank < n_used; rank++) {
        bool used = a->is_used[names[rank]];
        moe_lookahead_note_expert(&a->chances, rank, right, used);
        s->stats.lookahead_named += right;
        s->stats.lookahead_used += right && used;
    }
    for (uint32_t i = 0; i < n_used; i++) {
        a->is_used[chosen[i]] = false;
    }
}

void moe_lookahead_score(moe_speculation *s, const moe_pass *pass, uint32_t layer)
{
    const moe_lookahead *a = s->ahead;
    uint32_t n_used = s->runner->config->n_expert_used;
    if (a->pass != s->runner->n_passes) {
        return;
    }
    for (uint32_t r = 0; r < pass->n_rows; r++) {
        const moe_kv_row *row = &pass->kv_rows[r];
        const uint32_t *chosen = s->runner->buffers.chosen + (size_t)r * n_used;
        for (size_t i = 0; i < a->n_lines; i++) {
            const moe_session_draft *d = a->lines[i];
            const moe_ahead_line *line = d->ahead;
            if (line->n == 0 || row->position != line->first || row->pages != d->kv->addresses) {
                continue;
            }
            score_token(s, &line->tokens[0], true, layer, chosen);
            if (line->has_wrong) {
                score_token(s, &line->wrong, false, layer, chosen);
            }
        }
    }
}

const moe_policy_forecast *moe_speculation_forecasts(const moe_speculation *s, uint64_t pass,
                                                     size_t *n)
{
    const moe_lookahead *a = s->ahead;
    *n = a != NULL && a->pass == pass ? a->n_uses : 0;
    return a != NULL ? a->uses : NULL;
}
