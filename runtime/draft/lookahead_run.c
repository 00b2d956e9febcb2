/* SPDX-License-Identifier: MIT */
#include "runtime/draft/lookahead.h"

#include <stdlib.h>

#include <moe/moe.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* With prefetch on, experts that are at least this likely are read ahead, at most this many at a
 * time. This loses on a disk that is busy anyway, so prefetch=auto does not do it
 * (bench/results/refuted.md). */
#define LEAST_READ_CHANCE 0.75f
#define MOST_READS        8u

/* ---- Memory ---- */

int moe_lookahead_open(moe_lookahead **out, moe_speculation *s, const moe_engine_options *o,
                       moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    *out = NULL;
    moe_lookahead *a = moe_calloc(1, sizeof *a);
    if (a == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for lookahead");
    }
    size_t n_keys = (size_t)c->n_layer * c->n_expert;
    a->n_ahead = o->lookahead - 1;
    a->overlaps = moe_speculation_piece_rows(o, s->runner->device) > 0;
    a->pass = UINT64_MAX;
    a->rows = moe_calloc(s->max_rows, sizeof *a->rows);
    a->is_used = moe_calloc(c->n_expert, sizeof *a->is_used);
    a->chance = moe_calloc((a->n_ahead + 1) * n_keys, sizeof *a->chance);
    int status = a->rows == NULL || a->is_used == NULL || a->chance == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "no memory for lookahead")
                     : moe_lookahead_chances_init(&a->chances, c->n_expert_used, err);
    if (status != MOE_OK) {
        moe_lookahead_close(&a, s->runner->device);
    }
    *out = a;
    return status;
}

void moe_lookahead_close(moe_lookahead **lookahead, moe_device *device)
{
    moe_lookahead *a = *lookahead;
    if (a == NULL) {
        return;
    }
    moe_pass_buffers_free(&a->pieces.runner.buffers, device);
    moe_lookahead_chances_free(&a->chances);
    free(a->rows);
    free(a->is_used);
    free(a->chance);
    free(a->uses);
    free(a->lines);
    free(a);
    *lookahead = NULL;
}

/* ---- Drafting before a pass ---- */

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
                     .state_runs = s->pass_states,
                     .n_state_runs = n_rows,
                     .logit_rows = s->pass_logit_rows,
                     .n_logit_rows = n_rows,
                     .on_logits = moe_ahead_take_logits,
                     .user = s,
                     .is_cancelled = is_cancelled,
                     .cancel_user = s};
    s->ahead->drafts = true;
    int status = moe_pass_run_draft(s->runner, &pass, err);
    s->ahead->drafts = false;
    s->stats.lookahead_passes++;
    return status;
}

static int run_before_pass(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                           moe_error *err)
{
    int status = MOE_OK;
    uint32_t n_rows = moe_ahead_collect(s, drafts, n, s->max_rows);
    while (status == MOE_OK && n_rows > 0) {
        status = run_rows(s, n_rows, err);
        n_rows = status == MOE_OK ? moe_ahead_collect(s, drafts, n, s->max_rows) : 0;
    }
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

/* Forecasts the experts of a token in the first layers. The chance is that this or another
 * session uses the expert in that pass. */
static int forecast_token(moe_speculation *s, const moe_ahead_token *token, uint32_t index,
                          double right, uint32_t n_layer, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    moe_lookahead *a = s->ahead;
    float *chance_of = a->chance + (size_t)index * c->n_layer * c->n_expert;
    int status = MOE_OK;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
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

/* Forecasts all experts that a line has recorded. The token that is drafted in pieces has experts
 * for its first layers only. */
static int forecast_line(moe_speculation *s, const moe_ahead_line *line, moe_error *err)
{
    moe_lookahead *a = s->ahead;
    bool runs = line->running != 0 && line->running == a->pieces.number;
    double right = 1;
    for (uint32_t t = 0; t < line->n + runs; t++) {
        const moe_ahead_token *token = &line->tokens[t];
        uint32_t n_layer = t < line->n ? s->runner->config->n_layer : a->pieces.layer;
        right *= t == 0 ? 1 : moe_lookahead_stands(&a->chances, token->confidence);
        MOE_TRY(forecast_token(s, token, t, right, n_layer, err));
    }
    return MOE_OK;
}

static int forecast(moe_speculation *s, moe_error *err)
{
    const moe_model_config *c = s->runner->config;
    moe_lookahead *a = s->ahead;
    int status = MOE_OK;
    a->n_uses = 0;
    a->has_news = false;
    for (size_t i = 0; i < a->n_lines && status == MOE_OK; i++) {
        if (moe_ahead_looks(&a->lines[i]->line)) {
            status = forecast_line(s, a->lines[i]->ahead, err);
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

static int list_lines(moe_lookahead *a, moe_session_draft *const *drafts, size_t n, moe_error *err)
{
    a->n_lines = 0;
    if (n > a->line_capacity) {
        moe_session_draft **lines = moe_realloc_array(a->lines, n, sizeof *lines);
        if (lines == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for lookahead of %zu sessions", n);
        }
        a->lines = lines;
        a->line_capacity = n;
    }
    for (size_t i = 0; i < n; i++) {
        a->lines[i] = drafts[i];
    }
    a->n_lines = n;
    return MOE_OK;
}

int moe_lookahead_run(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                      moe_error *err)
{
    moe_lookahead *a = s->ahead;
    uint64_t begin = moe_now_ns();
    int status = list_lines(a, drafts, n, err);
    a->n_uses = 0;
    a->pass = s->runner->n_passes;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        if (moe_ahead_looks(&drafts[i]->line)) {
            moe_ahead_follow_text(s, drafts[i]);
            status = moe_ahead_reserve(s, drafts[i], err);
        } else {
            drafts[i]->ahead->n = 0;
            drafts[i]->ahead->running = 0;
        }
    }
    moe_ahead_pieces_resume(s);
    if (status == MOE_OK && !a->overlaps) {
        status = run_before_pass(s, drafts, n, err);
    }
    status = status == MOE_OK ? forecast(s, err) : status;
    for (size_t i = 0; i < n && status != MOE_OK; i++) {
        drafts[i]->ahead->n = 0;
        drafts[i]->ahead->running = 0;
    }
    a->n_uses = status == MOE_OK ? a->n_uses : 0;
    s->stats.lookahead_ns += moe_now_ns() - begin;
    return status;
}

/* ---- Called by the hook ---- */

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

void moe_lookahead_tell_news(moe_speculation *s)
{
    moe_error err;
    if (s->ahead->has_news && s->ahead->pass == s->runner->n_passes &&
        forecast(s, &err) == MOE_OK) {
        moe_lookahead_tell(s);
    }
}

void moe_lookahead_read(moe_speculation *s, uint32_t layer)
{
    const moe_lookahead *a = s->ahead;
    uint32_t n_expert = s->runner->config->n_expert;
    bool reads = s->runner->prefetch == MOE_PREFETCH_ON && a->pass == s->runner->n_passes;
    for (size_t i = 0; i < a->n_uses && reads; i++) {
        const moe_policy_forecast *use = &a->uses[i];
        uint32_t expert = use->key % n_expert;
        uint32_t of_layer = use->key / n_expert;
        bool comes = use->pass == a->pass ? of_layer > layer : use->pass == a->pass + 1;
        if (comes && use->chance >= LEAST_READ_CHANCE) {
            moe_expert_store_prefetch(s->runner->experts, of_layer, a->pass, &expert, 1,
                                      MOST_READS);
        }
    }
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
