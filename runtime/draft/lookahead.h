/* SPDX-License-Identifier: MIT */
/* Lookahead: a draft runs ahead of the text, and its routers' choices tell the expert caches which
 * experts the coming passes will use. None of its tokens is verified and no expert moves for it.
 * The text is that of plain decoding; a wrong draft costs only cache hits and time.
 *
 *    timeline      ... t-1 | t (its row in this pass)
 *    draft                 | t   t+1  t+2 ... t+n_ahead
 *    forecast of           | this pass, the next, ...
 *
 * The draft is the model restricted to resident experts (like the self draft). It rolls: while its
 * tokens prove right, each step adds one token at its end; when one is wrong, it starts again from
 * the text. Its keys and values are behind the timeline's end, where passes later write the real
 * ones. */
#ifndef MOE_DRAFT_LOOKAHEAD_H
#define MOE_DRAFT_LOOKAHEAD_H

#include "runtime/draft/lookahead_chances.h"
#include "runtime/draft/speculation.h"

#define MOE_MOST_AHEAD 15u

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
};

/* A row of a draft pass. */
typedef struct moe_ahead_row {
    moe_session_draft *draft;
    uint32_t index; /* of the line's tokens */
} moe_ahead_row;

struct moe_lookahead {
    uint32_t n_ahead; /* tokens beyond the current one */
    moe_lookahead_chances chances;
    bool drafts;                     /* a draft pass of lookahead is running */
    moe_ahead_row *rows;             /* [max_rows] of that pass */
    moe_session_draft *const *lines; /* [n_lines] of this step */
    size_t n_lines;
    bool *is_used;             /* [n_expert] */
    float *chance;             /* [n_ahead + 1][n_layer * n_expert]; 0: not forecast */
    uint64_t pass;             /* that uses are from */
    moe_policy_forecast *uses; /* [n_uses] */
    size_t n_uses, capacity;
};

int moe_lookahead_open(moe_lookahead **out, const moe_model_config *config, uint32_t max_rows,
                       uint32_t n_ahead, moe_error *err);
void moe_lookahead_close(moe_lookahead **lookahead);

int moe_ahead_line_create(moe_ahead_line **out, const moe_model_config *config, moe_error *err);
void moe_ahead_line_free(moe_ahead_line **line);

/* Drafts for the sessions that have one row in the coming pass, and forecasts what it will use. */
int moe_lookahead_run(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                      moe_error *err);

/* ---- For the hook ---- */

/* Notes what the router chose for a row of lookahead's draft pass, [n_expert_used]. */
void moe_lookahead_name(moe_speculation *speculation, uint32_t layer, uint32_t row,
                        const uint32_t *experts);
/* Passes the forecasts for a pass of the text to the caches. Call before its layers. */
void moe_lookahead_tell(moe_speculation *speculation);
/* Scores the draft against what the routers chose for a layer. */
void moe_lookahead_score(moe_speculation *speculation, const moe_pass *pass, uint32_t layer);

#endif
