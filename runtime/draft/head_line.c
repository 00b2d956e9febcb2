/* SPDX-License-Identifier: MIT */
/* A session's entries in the drafting layer, and the drafts that begin from them. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/draft/draft_head.h"
#include "runtime/draft/drafters.h"
#include "runtime/draft/length_controller.h"
#include "runtime/pass/program_run.h"

/* How many hidden states remain when a line starts again. They are all the text that a first
 * draft then sees. */
#define KEPT_RESTING 32u
/* The same limit for all sequences of a batch together, because their first drafts are made at
 * the same time. */
#define KEPT_BATCH 128u
#define KEPT_LEAST 4u

static size_t width_of(const moe_head_line *line)
{
    return line->head->width;
}

int moe_head_line_create(moe_head_line **out, moe_draft_head *head, moe_error *err)
{
    moe_head_line *line = moe_calloc(1, sizeof *line);
    *out = line;
    if (line != NULL) {
        line->head = head;
        line->hidden = moe_calloc(MOE_HEAD_ROWS + 1, width_of(line) * sizeof *line->hidden);
        line->chain = moe_calloc(width_of(line), sizeof *line->chain);
    }
    if (line == NULL || line->hidden == NULL || line->chain == NULL) {
        moe_head_line_free(out);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a session's drafting layer");
    }
    return MOE_OK;
}

static void cut_pages(moe_head_line *line, uint32_t n_pages)
{
    moe_draft_head *head = line->head;
    while (line->n_pages > n_pages) {
        head->device->ops->free(head->device, line->pages[--line->n_pages], head->kv.page_bytes);
    }
}

void moe_head_line_free(moe_head_line **line)
{
    if (*line != NULL) {
        cut_pages(*line, 0);
        free((*line)->pages);
        free((*line)->hidden);
        free((*line)->chain);
        free(*line);
        *line = NULL;
    }
}

int moe_head_line_reserve(moe_head_line *line, uint32_t end, moe_error *err)
{
    moe_draft_head *head = line->head;
    uint32_t n_pages = (end - line->base + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    if (n_pages > line->capacity) {
        uint32_t capacity = n_pages + n_pages / 2 + 4;
        void **pages = moe_realloc_array(line->pages, capacity, sizeof *pages);
        if (pages == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for a drafting layer's pages");
        }
        line->pages = pages;
        line->capacity = capacity;
    }
    int status = MOE_OK;
    while (line->n_pages < n_pages && status == MOE_OK) {
        status = head->device->ops->alloc(head->device, head->kv.page_bytes,
                                          &line->pages[line->n_pages], err);
        line->n_pages += status == MOE_OK;
    }
    return status;
}

/* Starts the line again: keeps the latest n_kept hidden states and forgets everything else. */
static void begin_anew(moe_head_line *line, uint32_t end, uint32_t n_kept)
{
    size_t width = width_of(line);
    memmove(line->hidden, line->hidden + (line->n_hidden - n_kept) * width,
            n_kept * width * sizeof *line->hidden);
    line->base = line->first = line->n_entries = end - n_kept;
    line->n_hidden = n_kept;
    line->is_behind = false;
    cut_pages(line, 0);
}

uint32_t moe_head_line_cut(moe_head_line *line, uint32_t n, uint32_t n_evaluated)
{
    uint32_t end = line->first + line->n_hidden;
    if (line->is_behind) {
        line->is_behind = n_evaluated > 0;
        return n_evaluated;
    }
    uint32_t most = n_evaluated == n && n > 0 ? n - 1 : n_evaluated;
    line->n_entries = line->n_entries < most ? line->n_entries : most;
    if (line->n_entries < line->base) {
        begin_anew(line, n_evaluated, 0);
        return n_evaluated;
    }
    /* Whether the line still has the hidden states of the tokens from n_entries on, which are
     * needed again. */
    bool has = line->first <= line->n_entries && end >= n_evaluated;
    uint32_t stays = has || line->n_entries == n_evaluated ? n_evaluated : line->n_entries;
    line->n_hidden = has ? stays - line->first : 0;
    line->first = has ? line->first : stays;
    return stays;
}

int moe_head_line_copy(moe_head_line *to, const moe_head_line *from, moe_error *err)
{
    moe_draft_head *head = to->head;
    to->is_behind = from->is_behind;
    to->base = from->base;
    to->n_entries = from->n_entries;
    to->first = from->first;
    to->n_hidden = from->n_hidden;
    memcpy(to->hidden, from->hidden, from->n_hidden * width_of(to) * sizeof *to->hidden);
    MOE_TRY(moe_head_line_reserve(to, from->n_entries, err));
    for (uint32_t p = 0; p < to->n_pages; p++) {
        MOE_TRY(head->device->ops->copy(head->device, to->pages[p], from->pages[p],
                                        head->kv.page_bytes, err));
    }
    return MOE_OK;
}

/* ---- Entries ---- */

/* Adds rows to a pass: the waiting hidden states from n_entries on whose next token is known, as
 * many as fit. Returns how many. */
static uint32_t put_waiting(moe_session_draft *d, uint32_t at)
{
    moe_head_line *line = d->head;
    moe_draft_head *head = line->head;
    size_t width = width_of(line);
    uint32_t end = line->first + line->n_hidden;
    uint32_t n = 0;
    for (uint32_t p = line->n_entries; p < end && p + 1 < d->line.n_tokens && at < MOE_HEAD_ROWS;
         p++, at++, n++) {
        memcpy(head->rows_hidden + at * width, line->hidden + (p - line->first) * width,
               width * sizeof(float));
        head->tokens[at] = d->line.tokens[p + 1];
        head->rows[at] = moe_kv_row_at(line->pages, p - line->base);
        head->row_ids[at] = (moe_row_id){0, p - line->base};
    }
    return n;
}

/* Call after a pass has made n entries: removes their hidden states, and keeps those that still
 * wait, and the last one. */
static void note_entries(moe_head_line *line, uint32_t n)
{
    size_t width = width_of(line);
    uint32_t end = line->first + line->n_hidden;
    line->n_entries += n;
    uint32_t first = line->n_entries < end ? line->n_entries : end - 1;
    if (first > line->first) {
        memmove(line->hidden, line->hidden + (first - line->first) * width,
                (end - first) * width * sizeof *line->hidden);
        line->first = first;
        line->n_hidden = end - first;
    }
}

/* Runs passes of the drafting layer to make the entries of the waiting hidden states. */
static int make_entries(moe_speculation *s, moe_session_draft *d, moe_error *err)
{
    moe_head_line *line = d->head;
    int status = moe_head_line_reserve(line, line->first + line->n_hidden, err);
    uint32_t n = status == MOE_OK ? put_waiting(d, 0) : 0;
    if (n > 0) {
        moe_pass pass = {.n_logit_rows = 0};
        status = moe_head_pass(line->head, &pass, n, err);
        s->head_work.n_passes++;
        s->head_work.n_rows += n;
    }
    if (n > 0 && status == MOE_OK) {
        note_entries(line, n);
    }
    return status;
}

/* Copies the hidden states of n rows of the model's pass to `to`: what the model's head reads or,
 * for a layer with several streams, all streams. */
static int fetch_rows(moe_draft_head *head, moe_runner *trunk, const uint32_t *rows, uint32_t n,
                      float *to, moe_error *err)
{
    const moe_device_ops *ops = trunk->device->ops;
    float *gathered = head->runner.buffers.values[MOE_VALUE_EMBEDDED];
    float *hidden = head->runner.buffers.values[MOE_VALUE_HIDDEN];
    if (head->streams != NULL) {
        MOE_TRY(ops->gather(trunk->device, trunk->buffers.values[MOE_VALUE_X], head->width, rows, n,
                            hidden, err));
    } else {
        MOE_TRY(moe_program_last_norm(trunk, rows, gathered, hidden, n, err));
    }
    return ops->download(trunk->device, to, hidden, (size_t)n * head->width * sizeof(float), err);
}

/* Adds the hidden states of these rows of the model's pass to the line. */
static int fetch_states(moe_speculation *s, moe_head_line *line, const uint32_t *rows, uint32_t n,
                        moe_error *err)
{
    moe_runner *trunk = s->runner;
    moe_draft_head *head = line->head;
    float *to = line->hidden + line->n_hidden * width_of(line);
    if (head->eagle != NULL) {
        return moe_draft_eagle_fetch(head->eagle, trunk, rows, n, to, err);
    }
    for (uint32_t at = 0; at < n; at += MOE_LOGIT_ROWS) {
        const uint32_t take = n - at < MOE_LOGIT_ROWS ? n - at : MOE_LOGIT_ROWS;
        MOE_TRY(fetch_rows(head, trunk, rows + at, take, to + at * width_of(line), err));
    }
    return MOE_OK;
}

int moe_head_line_keep(moe_speculation *s, moe_session_draft *d, const uint32_t *rows, uint32_t n,
                       moe_error *err)
{
    moe_head_line *line = d->head;
    if (line->first + line->n_hidden > d->line.n_evaluated) { /* a step failed after these states
                                                               * were stored */
        (void)moe_head_line_cut(line, d->line.n_evaluated + 1, d->line.n_evaluated);
    }
    if (line->is_behind || line->first + line->n_hidden != d->line.n_evaluated) {
        begin_anew(line, d->line.n_evaluated, 0);
    }
    bool rests = moe_length_rests(s->control[MOE_DRAFTER_HEAD]);
    int status = MOE_OK;
    for (uint32_t done = 0; done < n && status == MOE_OK;) {
        uint32_t room = MOE_HEAD_ROWS + 1 - line->n_hidden;
        uint32_t take = n - done < room ? n - done : room;
        take = take < MOE_HEAD_ROWS ? take : MOE_HEAD_ROWS;
        status = fetch_states(s, line, rows + done, take, err);
        if (status == MOE_OK) {
            line->n_hidden += take;
            done += take;
        }
        if (status == MOE_OK && line->n_hidden == MOE_HEAD_ROWS + 1) {
            if (rests) {
                begin_anew(line, line->first + line->n_hidden, KEPT_RESTING);
            } else {
                status = make_entries(s, d, err);
            }
        }
    }
    if (status == MOE_ERR_BUDGET || status == MOE_ERR_MEMORY) {
        line->is_behind = true; /* decodes on */
        status = MOE_OK;
    }
    return status;
}

/* ---- The drafter ---- */

/* The rows of one pass of the drafting layer, from several sessions. The last row of each session
 * needs logits. */
typedef struct head_batch {
    moe_speculation *speculation;
    uint32_t n_rows, n;
    moe_session_draft *owners[MOE_LOGIT_ROWS];
    uint32_t nodes[MOE_LOGIT_ROWS];     /* the nodes of the sessions' trees to which the rows
                                         * belong */
    uint32_t n_entries[MOE_LOGIT_ROWS]; /* that stay */
    uint32_t n_seen;                    /* logit rows handed over */
    int status;
    moe_error *err;
} head_batch;

static bool expand_row(uint32_t row, const float *hidden, const float *logits, void *user)
{
    (void)hidden;
    head_batch *b = user;
    (void)row;
    moe_session_draft *d = b->owners[b->n_seen];
    const moe_draft_eagle *eagle = d->head->head->eagle;
    logits = eagle != NULL ? moe_draft_eagle_spread(eagle, logits) : logits;
    int status = b->status != MOE_OK
                     ? b->status
                     : moe_draft_expand(b->speculation, d, b->nodes[b->n_seen], logits, b->err);
    b->n_seen++;
    b->status = status;
    return true;
}

static bool expand_greatest(uint32_t row, const moe_greatest *greatest, void *user)
{
    head_batch *b = user;
    (void)row;
    const moe_draft_eagle *eagle = b->owners[b->n_seen]->head->head->eagle;
    moe_greatest own = *greatest;
    own.index = eagle != NULL ? moe_draft_eagle_token(eagle, own.index) : own.index;
    moe_draft_expand_greatest(b->speculation, b->owners[b->n_seen], b->nodes[b->n_seen], &own);
    b->n_seen++;
    return true;
}

static int run_batch(moe_draft_head *head, head_batch *b, moe_error *err)
{
    moe_speculation *s = b->speculation;
    bool greatest = true;
    if (b->n == 0) {
        return MOE_OK;
    }
    for (uint32_t i = 0; i < b->n; i++) {
        greatest = greatest && moe_draft_takes_greatest(s, b->owners[i]);
    }
    moe_pass pass = {.n_logit_rows = b->n,
                     .on_logits = expand_row,
                     .on_greatest = greatest ? expand_greatest : NULL,
                     .user = b};
    b->n_seen = 0;
    int status = moe_head_pass(head, &pass, b->n_rows, err);
    s->n_draft_passes++;
    s->head_work.n_passes++;
    s->head_work.n_logit_passes++;
    s->head_work.n_rows += b->n_rows;
    s->head_work.n_logit_rows += b->n;
    status = status != MOE_OK ? status : b->status;
    for (uint32_t i = 0; i < b->n && status == MOE_OK; i++) {
        moe_head_line *line = b->owners[i]->head;
        memcpy(line->chain, moe_head_states(head, b->n, i), width_of(line) * sizeof(float));
        if (b->n_entries[i] > 0) {
            note_entries(line, b->n_entries[i]);
        }
    }
    b->n = b->n_rows = 0;
    return status;
}

/* Adds the row of a drafted node: its inputs are the layer's own hidden state and the node's
 * token. */
static void put_chained(head_batch *b, moe_session_draft *d, uint32_t node)
{
    moe_head_line *line = d->head;
    moe_draft_head *head = line->head;
    const moe_tree_node *at = &d->tree.nodes[node];
    uint32_t position = d->line.n_evaluated - 1 + at->depth - line->base;
    memcpy(head->rows_hidden + b->n_rows * width_of(line), line->chain,
           width_of(line) * sizeof(float));
    head->tokens[b->n_rows] = at->token;
    head->rows[b->n_rows] = moe_kv_row_at(line->pages, position);
    head->row_ids[b->n_rows] = (moe_row_id){0, position};
    b->n_entries[b->n] = 0;
    b->n_rows++;
}

/* Adds the session's next rows to the batch. If they do not fit, runs the batch first. */
static int put_session(moe_draft_head *head, head_batch *b, moe_session_draft *d, moe_error *err)
{
    moe_head_line *line = d->head;
    moe_draft_narrow_frontier(d, 1);
    uint32_t node = d->frontier[0];
    uint32_t n_rows = node == 0 ? line->first + line->n_hidden - line->n_entries : 1;
    d->n_frontier = 0;
    if (n_rows == 0) { /* an earlier draft computed the first row and then failed */
        return MOE_OK;
    }
    MOE_TRY(b->n == MOE_LOGIT_ROWS || b->n_rows + n_rows > MOE_HEAD_ROWS ? run_batch(head, b, err)
                                                                         : MOE_OK);
    if (node == 0) {
        b->n_entries[b->n] = put_waiting(d, b->n_rows);
        b->n_rows += b->n_entries[b->n];
    } else {
        put_chained(b, d, node);
    }
    head->logit_rows[b->n] = b->n_rows - 1;
    b->owners[b->n] = d;
    b->nodes[b->n++] = node;
    return MOE_OK;
}

/* Makes the line ready for a draft, which needs all hidden states before the next token, and room
 * for the draft's entries. If a draft is not possible, the session's frontier is left empty. */
static int prepare(moe_session_draft *d, moe_speculation *s, moe_error *err)
{
    moe_head_line *line = d->head;
    moe_draft_begin_frontier(d);
    bool ready = !line->is_behind && line->first + line->n_hidden == d->line.n_evaluated &&
                 line->n_hidden > 0;
    if (!ready || d->n_frontier == 0) {
        d->n_frontier = 0;
        return MOE_OK;
    }
    uint32_t share = KEPT_BATCH / s->n_writing;
    uint32_t kept = share > KEPT_LEAST ? share : KEPT_LEAST;
    if (line->n_entries == line->base && s->n_writing >= MOE_LENGTH_BATCH &&
        line->first == line->base && line->n_hidden > kept) {
        begin_anew(line, d->line.n_evaluated, kept);
    }
    /* If no token of the last draft was accepted, the last state's entry belongs to that draft.
     * Start again from that state. */
    if (line->n_entries == d->line.n_evaluated) {
        line->n_entries--;
    }
    if (line->first + line->n_hidden - line->n_entries > MOE_HEAD_ROWS) {
        MOE_TRY(make_entries(s, d, err));
    }
    return moe_head_line_reserve(line, d->line.n_evaluated + d->max_depth + 1, err);
}

int moe_draft_by_head(moe_speculation *s, moe_session_draft *const *drafts, size_t n,
                      moe_error *err)
{
    moe_draft_head *head = s->parts.head;
    head_batch batch = {.speculation = s, .err = err};
    int status = MOE_OK;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        drafts[i]->n_frontier = 0;
        status = drafts[i]->active ? prepare(drafts[i], s, err) : MOE_OK;
    }
    for (bool any = true; any && status == MOE_OK;) {
        any = false;
        for (size_t i = 0; i < n && status == MOE_OK; i++) {
            if (drafts[i]->active && drafts[i]->n_frontier > 0) {
                status = put_session(head, &batch, drafts[i], err);
                any = true;
            }
        }
        status = status == MOE_OK ? run_batch(head, &batch, err) : status;
    }
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        if (drafts[i]->active && !s->is_silent) {
            moe_draft_cut(s, drafts[i], NULL);
        }
    }
    return status;
}
