/* SPDX-License-Identifier: MIT */
/* Lookahead: a draft runs ahead of the text, and its routers' choices tell the expert caches which
 * experts the coming passes will use. None of its tokens is verified. The text is that of plain
 * decoding; a wrong draft costs only cache hits and time.
 *
 *    timeline      ... t-1 | t (its row in this pass)
 *    draft                 | t   t+1  t+2 ... t+n_ahead
 *    forecast of           | this pass, the next, ...
 *
 * The draft is the model restricted to resident experts (like the self draft). It rolls: while its
 * tokens prove right, each step adds one token at its end; when one is wrong, it starts again from
 * the text. The draft of position p is stored at p + 1, so that it never overwrites what a pass
 * stores for the text; passes later write the real keys and values there. Recurrent layers start
 * from the session's state, which the draft only reads, and take the line's rows from its log.
 *
 * The draft runs before each pass, or (overlapping) in pieces while a pass waits for experts, which
 * costs no time if the pieces are shorter than the waits (lookahead_pieces.c). Its rows survive
 * from one step to the next. */
#ifndef MOE_DRAFT_LOOKAHEAD_H
#define MOE_DRAFT_LOOKAHEAD_H

#include "runtime/draft/lookahead_chances.h"
#include "runtime/draft/speculation.h"
#include "runtime/pass/runner.h"

#define MOE_MOST_AHEAD 15u
/* How many lines' rows the log of recurrent layers has room for. A line's rows move forward
 * through the log as the text grows, and continue at the log's beginning when they reach its end
 * (a ring). */
#define MOE_AHEAD_LOG_LINES 2u
/* The most rows of a draft that runs in pieces. If there are more sessions, some wait for the
 * next draft. */
#define MOE_AHEAD_PIECE_ROWS 4u

/* A drafted token, and the experts that its row would have used. */
typedef struct moe_ahead_token {
    int32_t token;
    float confidence; /* the draft's confidence in the token; 1 for the first token, which is
                       * known */
    bool is_known;
    uint16_t *names; /* [n_layer][n_expert_used], best first */
} moe_ahead_token;

/* A session's line of drafted tokens. */
struct moe_ahead_line {
    uint32_t first; /* position of tokens[0] in the timeline */
    uint32_t n;
    moe_ahead_token tokens[MOE_MOST_AHEAD + 1];
    moe_ahead_token wrong; /* the token expected in place of tokens[0], which was wrong */
    bool has_wrong;
    int32_t next; /* what the draft expects after tokens[n - 1] */
    float next_confidence;
    /* The number of the current draft pass that computes tokens[n]; 0: none does. */
    uint64_t running;
    uint32_t path[MOE_MOST_AHEAD + 1]; /* where tokens[i] is stored */
    /* For recurrent layers: the row of the session's log with the inputs of tokens[0]. The
     * recurrent state before that row is the session's own. */
    uint32_t log_first;
};

/* A row of a draft pass. */
typedef struct moe_ahead_row {
    moe_session_draft *draft;
    uint32_t index; /* of the line's tokens */
} moe_ahead_row;

/* A draft pass that runs in pieces, on a runner with buffers of its own. */
typedef struct moe_ahead_pieces {
    moe_runner runner;
    moe_pass_hook hook;
    moe_pass pass;
    moe_step_inputs inputs;
    uint64_t number;            /* of the pass, from 1 on */
    uint32_t n_rows;            /* 0: no pass is under way */
    uint32_t layer;             /* the next; n_layer: the logits */
    double layer_ns, logits_ns; /* how long these pieces take, averages */
} moe_ahead_pieces;

struct moe_lookahead {
    uint32_t n_ahead; /* tokens beyond the current one */
    uint32_t log_at;  /* where the lines' part of a log begins */
    bool overlaps;    /* the draft runs in pieces */
    moe_ahead_pieces pieces;
    moe_lookahead_chances chances;
    bool drafts;               /* a draft pass of lookahead is running */
    moe_ahead_row *rows;       /* [max_rows] of that pass */
    moe_session_draft **lines; /* [n_lines] of this step */
    size_t n_lines, line_capacity;
    bool *is_used;             /* [n_expert] */
    float *chance;             /* [n_ahead + 1][n_layer * n_expert]; 0: not forecast */
    uint64_t pass;             /* the first that `uses` forecasts */
    bool has_news;             /* the draft has named experts since the last forecasts */
    moe_policy_forecast *uses; /* [n_uses] */
    size_t n_uses, capacity;
};

/* Opens lookahead. Call only if options.lookahead > 0. */
int moe_lookahead_open(moe_lookahead **out, moe_speculation *speculation,
                       const moe_engine_options *options, moe_error *err);
void moe_lookahead_close(moe_lookahead **lookahead, moe_device *device);

/* Call before a step, with the drafts of all sessions that have exactly one row in the coming
 * pass. Runs the draft now, unless it runs in pieces (`overlaps`), and forecasts which experts
 * the pass will use. */
int moe_lookahead_run(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                      moe_error *err);

/* ---- Lines (lookahead_line.c) ---- */

int moe_ahead_line_create(moe_ahead_line **out, const moe_model_config *config, moe_error *err);
void moe_ahead_line_free(moe_ahead_line **line);
/* Whether the session has exactly one row in the coming pass: the token that was sampled last, or
 * a token that was fed alone. */
bool moe_ahead_looks(const moe_draft_line *line);
/* Makes the line begin at the token whose row is in the coming pass. Drafted tokens that turned
 * out right are kept. */
void moe_ahead_follow_text(moe_speculation *speculation, moe_session_draft *draft);
/* Makes the pages and the log that the line's rows will be stored in writable. */
int moe_ahead_reserve(moe_speculation *speculation, moe_session_draft *draft, moe_error *err);
/* Collects the next row of each line that can be continued, for the coming draft pass. Returns
 * the number of rows. */
uint32_t moe_ahead_collect(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                           uint32_t most);
/* Sets where row r of the draft pass is stored. */
void moe_ahead_place_row(moe_speculation *speculation, uint32_t r);
/* Takes a row's logits and appends its next token to the line. It is a moe_row_logits_fn; user
 * points to the moe_speculation. */
bool moe_ahead_take_logits(uint32_t row, const float *hidden, const float *logits, void *user);

/* ---- Drafting in pieces (lookahead_pieces.c) ---- */

/* Attaches the hook that records the experts of the draft. The runner must be complete. */
int moe_ahead_pieces_attach(moe_speculation *speculation, const moe_pass_hook *hook,
                            moe_error *err);
/* Call after the lines have followed the text. Continues the current draft pass if all tokens of
 * its rows are still drafted; otherwise drops it. */
void moe_ahead_pieces_resume(moe_speculation *speculation);
/* Runs a piece if it should take less time than expected_ns. Returns whether it did. */
bool moe_ahead_pieces_run(moe_speculation *speculation, uint64_t expected_ns);

/* ---- Called by the hook (draft_hook.c) ---- */

/* Records the experts [n_expert_used] that the router chose for a row of lookahead's draft pass. */
void moe_lookahead_name(moe_speculation *speculation, uint32_t layer, uint32_t row,
                        const uint32_t *experts);
/* Passes the forecasts for a pass of the text to the expert caches. Call before the pass's first
 * layer. */
void moe_lookahead_tell(moe_speculation *speculation);
/* Passes the forecasts again if the draft has recorded more experts since. */
void moe_lookahead_tell_news(moe_speculation *speculation);
/* Requests the likely experts of later layers of this pass, and of the next pass, that are not in
 * memory. They are read while the disk has nothing else to do. Only if prefetch is explicitly on
 * (not auto). */
void moe_lookahead_read(moe_speculation *speculation, uint32_t layer);
/* Compares the experts that the draft recorded for a layer with those that the routers chose. */
void moe_lookahead_score(moe_speculation *speculation, const moe_pass *pass, uint32_t layer);

#endif
