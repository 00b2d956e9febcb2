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
/* The log of recurrent layers has room for this many lines: a line's rows move forward in it as the
 * text goes on, and from its end back to the beginning. */
#define MOE_AHEAD_LOG_LINES 2u
/* Rows of a draft that runs in pieces. With more sessions, some wait for the next draft. */
#define MOE_AHEAD_PIECE_ROWS 4u

/* A drafted token, and the experts that its row would have used. */
typedef struct moe_ahead_token {
    int32_t token;
    float confidence; /* the draft's confidence in it; of the first token, which is known: 1 */
    bool is_known;
    uint16_t *names; /* [n_layer][n_expert_used], best first */
} moe_ahead_token;

/* A session's. */
struct moe_ahead_line {
    uint32_t first; /* position of tokens[0] in the timeline */
    uint32_t n;
    moe_ahead_token tokens[MOE_MOST_AHEAD + 1];
    moe_ahead_token wrong; /* the token expected in place of tokens[0], which was wrong */
    bool has_wrong;
    int32_t next; /* what the draft expects after tokens[n - 1] */
    float next_confidence;
    /* The number of the draft pass under way that computes tokens[n]; 0: none does. */
    uint64_t running;
    uint32_t path[MOE_MOST_AHEAD + 1]; /* where tokens[i] is stored */
    /* Recurrent layers: the row of the session's log that has the inputs of tokens[0]. The state
     * before it is the session's. */
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

/* Call only if options.lookahead > 0. */
int moe_lookahead_open(moe_lookahead **out, moe_speculation *speculation,
                       const moe_engine_options *options, moe_error *err);
void moe_lookahead_close(moe_lookahead **lookahead, moe_device *device);

/* Call before a step, with the drafts of the sessions that have one row in the coming pass. Drafts,
 * unless drafts run in pieces (`overlaps`), and forecasts which experts the pass will use. */
int moe_lookahead_run(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                      moe_error *err);

/* ---- Lines (lookahead_line.c) ---- */

int moe_ahead_line_create(moe_ahead_line **out, const moe_model_config *config, moe_error *err);
void moe_ahead_line_free(moe_ahead_line **line);
/* Whether the session has exactly one row in the coming pass: the token that was sampled last, or
 * one that was fed alone. */
bool moe_ahead_looks(const moe_draft_line *line);
/* Makes the line begin at the token that has its row in the coming pass, and keeps the tokens that
 * were right. */
void moe_ahead_follow_text(moe_speculation *speculation, moe_session_draft *draft);
/* Makes the places of the line's rows writable. */
int moe_ahead_reserve(moe_speculation *speculation, moe_session_draft *draft, moe_error *err);
/* Collects a row of each line that can go on, for the token after its last, into the arrays for
 * draft passes. */
uint32_t moe_ahead_collect(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                           uint32_t most);
/* Fills in where row r of the draft pass is stored. */
void moe_ahead_place_row(moe_speculation *speculation, uint32_t r);
/* Takes a row's logits and makes the line one token longer. A moe_row_logits_fn; user:
 * moe_speculation. */
bool moe_ahead_take_logits(uint32_t row, const float *hidden, const float *logits, void *user);

/* ---- Pieces (lookahead_pieces.c) ---- */

/* The runner must be complete; the hook names the draft's experts. */
int moe_ahead_pieces_attach(moe_speculation *speculation, const moe_pass_hook *hook,
                            moe_error *err);
/* Call after the lines have followed the text. Goes on with the draft pass under way if all tokens
 * of its rows are still drafted, else drops it. */
void moe_ahead_pieces_resume(moe_speculation *speculation);
/* Runs a piece if it is shorter than expected_ns. */
bool moe_ahead_pieces_run(moe_speculation *speculation, uint64_t expected_ns);

/* ---- For the hook ---- */

/* Notes what the router chose for a row of lookahead's draft pass, [n_expert_used]. */
void moe_lookahead_name(moe_speculation *speculation, uint32_t layer, uint32_t row,
                        const uint32_t *experts);
/* Passes the forecasts for a pass of the text to the caches. Call before its layers. */
void moe_lookahead_tell(moe_speculation *speculation);
/* Passes them again if experts were named since. */
void moe_lookahead_tell_news(moe_speculation *speculation);
/* Requests experts that are not in memory and that this pass will use after this layer, or the next
 * pass. They are read while the disk has nothing else to do. Only if prefetch is on, not auto. */
void moe_lookahead_read(moe_speculation *speculation, uint32_t layer);
/* Compares the draft's names with the experts that the routers chose for a layer. */
void moe_lookahead_score(moe_speculation *speculation, const moe_pass *pass, uint32_t layer);

#endif
