/* SPDX-License-Identifier: MIT */
/* A drafting layer ("nextn", multi-token prediction): a layer that was trained with the model. It
 * joins the model's last hidden state at a position with the next token, and predicts the token
 * after the next. Then it continues from its own hidden state, one token at a time.
 *
 *   hidden state of p (after the output norm) -> norm -+
 *                                                      +- join -> layer -> norm -> the model's head
 *   embedding of token p + 1 ------------------> norm -+                   |
 *                                                                     hidden state of p + 1
 *
 * It runs as a model of one layer on its own runner, with weights, keys and values, and experts,
 * all in memory. A session's entries are in a moe_head_line:
 *
 *   positions   base ................ n_entries ............ first + n_hidden = evaluated
 *               keys and values of   | hidden states wait for |
 *               the layer            | the next token         | a draft's entries, provisional
 *
 * Entry p needs token p + 1. Hidden states wait until a draft begins, or until there are
 * MOE_HEAD_ROWS of them. If the session drafts, a pass of the layer then makes their entries. A
 * session that does not draft should not pay for this: its line forgets all but the latest states
 * and starts again with these. The layer then sees no text before `base`, which it counts as
 * position 0. The line keeps the last state in case the next token is taken back.
 *
 * Where the layer has several residual streams, as in DeepSeek-V4, a hidden state is all of them,
 * before the model's head; each is joined with the token.
 *
 * An EAGLE-3 head (draft_eagle.h) is such a layer, too: it differs in where a hidden state comes
 * from, in how its layer reads it, and in its tokens. */
#ifndef MOE_DRAFT_DRAFT_HEAD_H
#define MOE_DRAFT_DRAFT_HEAD_H

#include "offload/model_reader.h"
#include "runtime/draft/draft_eagle.h"
#include "runtime/draft/speculation.h"
#include "runtime/pass/runner.h"

struct moe_draft_head {
    /* Set at open. */
    moe_draft_eagle *eagle;  /* NULL: the layer is no EAGLE-3 head */
    moe_model_config config; /* as if the layer were a model of its own */
    moe_tensor_map map;
    moe_program program;
    const moe_gguf *gguf; /* the file that has the layer */
    moe_weights weights;  /* the layer's, and the model's embedding and output matrix */
    moe_kv_pool kv;       /* only the layout of a page */
    moe_runner runner;
    moe_device *device;
    uint32_t width; /* floats of a hidden state: n_embd for each stream */
    float *streams; /* [MOE_LOGIT_ROWS][width]: of the last pass's logit rows; NULL: one stream */
    bool is_open;   /* the layer's memory is allocated */
    uint64_t
        layer_bytes; /* that a row uses: weights without embedding and output matrix, experts */
    /* Inputs of a pass, one entry for each row. */
    float *rows_hidden; /* [MOE_HEAD_ROWS][width] */
    int32_t tokens[MOE_HEAD_ROWS];
    moe_kv_row rows[MOE_HEAD_ROWS];
    moe_row_id row_ids[MOE_HEAD_ROWS];
    uint32_t logit_rows[MOE_HEAD_ROWS];
};

/* A session's part. */
struct moe_head_line {
    moe_draft_head *head;
    bool is_behind; /* hidden states are missing: it begins anew behind them */
    uint32_t base, n_entries, first, n_hidden;
    float *hidden; /* [MOE_HEAD_ROWS + 1][width] */
    float *chain;  /* [width]: the layer's own, of the last drafted token */
    void **pages;  /* device, [n_pages] */
    uint32_t n_pages, capacity;
};

/* Reads the description of a drafting layer, or of an EAGLE-3 head, from the open file gguf.
 * trunk: the model that it drafts for. path: the file's name, for messages. */
int moe_draft_head_open(moe_draft_head **out, const moe_model_config *trunk, const moe_gguf *gguf,
                        const char *path, moe_error *err);
void moe_draft_head_close(moe_draft_head **head);
/* Computes the layout of the layer's keys and values. Call it before memory is planned. */
int moe_draft_head_layout(moe_draft_head *head, moe_device *device, moe_kv_type type,
                          moe_error *err);
/* Compute the bytes that the head takes: for weights and expert slots; for buffers, if the
 * model's passes have up to this many rows; for each session; and for each token of a session. */
int moe_draft_head_resident_bytes(const moe_draft_head *head, uint64_t *bytes, moe_error *err);
uint64_t moe_draft_head_scratch_bytes(const moe_draft_head *head, uint32_t max_rows);
uint64_t moe_draft_head_session_bytes(const moe_draft_head *head);
uint64_t moe_draft_head_token_bytes(const moe_draft_head *head);
/* Raises the limits so that the head's own passes fit. */
void moe_draft_head_limits(const moe_draft_head *head, moe_device_limits *limits);
/* Loads the head's weights. trunk: the model's runner, complete with its weights; an EAGLE-3 head
 * makes it keep some streams. experts, tensors: expected checksums. All arguments must outlive
 * the head. */
int moe_draft_head_load(moe_draft_head *head, moe_runner *trunk,
                        const moe_model_reader_options *reading, moe_weight_sums *experts,
                        moe_weight_sums *tensors, moe_error *err);

/* Runs one pass over n rows. The caller has set rows_hidden, tokens and rows; `pass` says which
 * rows need logits, and who receives them. */
int moe_head_pass(moe_draft_head *head, moe_pass *pass, uint32_t n, moe_error *err);
/* Returns the layer's hidden state for the i-th of the n rows with logits of the last pass. */
const float *moe_head_states(const moe_draft_head *head, uint32_t n, uint32_t i);

/* ---- A session's line: its entries in the drafting layer ---- */

int moe_head_line_create(moe_head_line **out, moe_draft_head *head, moe_error *err);
void moe_head_line_free(moe_head_line **line);
/* Stores hidden states of the pass that the model has just run, for the tokens from
 * draft->line.n_evaluated on. Runs the drafting layer when many states are waiting. */
int moe_head_line_keep(moe_speculation *speculation, moe_session_draft *draft, const uint32_t *rows,
                       uint32_t n, moe_error *err);
/* Makes room for the entries before position `end`. */
int moe_head_line_reserve(moe_head_line *line, uint32_t end, moe_error *err);
/* Cuts the line when the timeline is cut to n tokens, n_evaluated of them evaluated. Returns how
 * many may stay evaluated: a token whose hidden state is needed again must be evaluated again. */
uint32_t moe_head_line_cut(moe_head_line *line, uint32_t n, uint32_t n_evaluated);
/* Copies the line `from` to `to`, the line of a new session. */
int moe_head_line_copy(moe_head_line *to, const moe_head_line *from, moe_error *err);

/* ---- The drafter ---- */

int moe_draft_by_head(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                      moe_error *err);

#endif
