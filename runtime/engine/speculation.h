/* SPDX-License-Identifier: MIT */
/* Speculation in the engine. One step with it:
 *
 *   draft    for every session that writes: a token tree, by n-grams of its own text, by the model
 *            itself restricted to the experts that are in memory, or by a second, small model
 *   verify   one pass over the trees' nodes (step.c), each missing expert moved once
 *   settle   the walk that runtime/draft/accept.h describes has taken place as the logits came;
 *            the accepted path becomes part of the timeline, the rest is forgotten
 *
 * Lossless: with the lossy modes off the text is that of plain decoding, greedy or sampled with the
 * same seed; with acceptance by rejection, sampled tokens have the distribution of plain sampling.
 * Costs are measured in time, or modelled in bytes (byte_cost.h), and told to the length
 * controllers, one for each kind of drafter. */
#ifndef MOE_ENGINE_SPECULATION_H
#define MOE_ENGINE_SPECULATION_H

#include <moe/moe.h>

#include "offload/expert_store.h"
#include "runtime/draft/byte_cost.h"
#include "runtime/sidecar/calibration.h"
#include "runtime/draft/foresight.h"
#include "runtime/pass/pass.h"
#include "runtime/draft/accept.h"
#include "runtime/draft/draft_route.h"
#include "runtime/draft/length_control.h"
#include "runtime/draft/suffix_draft.h"
#include "runtime/draft/token_tree.h"

typedef enum moe_drafter {
    MOE_DRAFTER_NGRAM,
    MOE_DRAFTER_SELF,
    MOE_DRAFTER_MODEL,
    MOE_DRAFTERS,
    MOE_DRAFTER_NONE = MOE_DRAFTERS
} moe_drafter;

struct moe_draft_model;
struct moe_miss_model;

#define MOE_MOST_DRAFT   63u /* tokens in a row */
#define MOE_SILENT_DRAFT 4u

/* What a session has of it. */
typedef struct moe_session_draft {
    moe_token_tree tree; /* of this step; just the root: plain decoding */
    bool active;         /* the tree is this step's rows */
    moe_drafter drafter; /* whose tree it is */
    double *survival;    /* [nodes] calibrated probability that the path to the node is accepted */
    float *confidence;   /* [nodes] how sure its drafter was of the node itself */
    bool is_chain;
    uint32_t *path; /* [nodes][path_stride]: of a branching tree, where the rows of a node's path
                       are stored */
    uint32_t path_stride;
    uint32_t *frontier; /* [nodes] while drafting: nodes to go on from */
    uint32_t n_frontier;
    uint32_t max_nodes; /* this step, the root included */
    uint32_t max_depth; /* ... of the drafter at work */
    uint32_t room;      /* ... whatever the drafter */
    /* The walk. */
    uint32_t current; /* deepest accepted node */
    int32_t next;     /* what follows it, once decided */
    bool decided;
    /* Of temperatures above 0: the distribution that the child of chain node i was drawn from. */
    moe_distribution *drawn; /* [max depth + 1] */
    uint32_t *drawn_capacity;
    uint32_t n_drawn;
    bool is_drawn;
    /* A silent draft: a chain after silent_at tokens of the timeline, of which silent_stood have
     * come so far. */
    int32_t silent[MOE_SILENT_DRAFT];
    float silent_confidence[MOE_SILENT_DRAFT];
    uint32_t n_silent, silent_stood, silent_at;
    moe_random random;        /* of drawing drafts */
    moe_random random_before; /* what it was when the step began */
    moe_suffix_index *suffix;
    struct moe_session *mirror; /* of a second model */
} moe_session_draft;

/* A row of a draft pass. */
typedef struct moe_draft_row {
    struct moe_session *session;
    uint32_t node;
} moe_draft_row;

typedef struct moe_speculation {
    /* Set at open, never changed. */
    bool use[MOE_DRAFTERS];
    uint32_t max_draft;
    uint32_t tree_nodes;    /* drafted nodes of a branching tree; 0: chains */
    uint32_t draft_experts; /* of a layer that the self draft uses; 0: all that are resident */
    bool draws;             /* chains above temperature 0 are drawn, and accepted by rejection */
    moe_draft_pin pin;
    moe_draft_fill fill;
    const uint16_t *affinity; /* [n_layer][n_expert][n_expert], or NULL */
    uint16_t *shuffled;       /* owned, or NULL */
    bool foresight;
    uint64_t verify_bytes; /* lossless budget; 0: none */
    /* Changed by steps. */
    moe_length_control *control[MOE_DRAFTERS];
    bool begun[MOE_DRAFTERS]; /* asked for a length in this step */
    struct moe_draft_model *model;
    bool by_bytes; /* costs are modelled, else times */
    moe_byte_cost byte_cost;
    struct moe_miss_model *misses; /* NULL: all experts fit, and costs are times */
    moe_foresight foresees;
    moe_random random;  /* of the baselines that pin or fill at random */
    float *score;       /* [n_expert] */
    uint32_t *pinned;   /* [n_layer][n_expert]: what was kept last */
    uint32_t *n_pinned; /* [n_layer] */
    double miss_cost;   /* of one missing expert, moving average */
    uint64_t misses_before;
    double plain_wait, plain_missed; /* of plain passes, fading sums */
    uint32_t n_writing;              /* sessions that write in this step */
    double draft_cost;               /* of this step */
    uint32_t n_draft_passes;
    uint32_t n_recorded_passes; /* of those, the device did by itself */
    uint32_t *standing;         /* [prefill_chunk] rows of a plain pass */
    /* Of a draft pass, [prefill_chunk]. */
    moe_draft_row *rows;
    int32_t *pass_tokens;
    uint32_t *pass_depths;
    moe_kv_row *pass_kv;
    uint32_t *pass_logit_rows;
    moe_state_run *pass_states;
    moe_drafter drafter; /* of this step */
    moe_speculation_stats stats;
} moe_speculation;

int moe_speculation_open(moe_speculation **out, moe_engine *engine,
                         const moe_engine_options *options, moe_error *err);
void moe_speculation_close(moe_speculation **speculation);
/* speculation NULL: *stats stays. */
void moe_speculation_get_stats(const moe_speculation *speculation,
                               const moe_expert_store_stats *experts, moe_speculation_stats *stats);
/* Checks the options alone: names and combinations. */
int moe_speculation_check(const moe_engine_options *options, moe_error *err);

/* Costs are modelled bytes: what depends on when reads arrive (prefetch, foresight) is then off
 * unless it is asked for by name, so that residency, drafts and their lengths are the same in every
 * run. */
bool moe_speculation_by_bytes(const moe_engine_options *options);
/* Rows that a session's chain may have in a pass, its root among them; 0: no drafts. */
uint32_t moe_speculation_chain_rows(const moe_engine_options *options);
/* Whether the options may give a self draft, and one with a table of affinities. */
bool moe_speculation_may_self(const moe_engine_options *options, bool *has_affinity);
/* Experts of each layer that stay from the beginning on: those of draft pin hot-global; else 0. */
uint32_t moe_speculation_kept_experts(const moe_engine_options *options);

int moe_session_draft_create(moe_session_draft **out, const moe_speculation *speculation,
                             moe_error *err);
/* Restarts the numbers that drafts are drawn with from the state of the session's sampler: when
 * that is created, seeded anew or loaded. A number that the timeline already depends on must never
 * be used again. */
void moe_session_draft_seed(moe_session_draft *draft, const moe_random *sampler);
void moe_session_draft_free(moe_session_draft **draft);

/* ---- One step, in this order; step.c calls ---- */

/* Drafts for the sessions that write. Afterwards draft->active says which have a tree. */
int moe_speculation_draft(moe_engine *engine, moe_session *const *sessions, size_t n,
                          moe_error *err);
/* The tree is final: where its rows are stored. */
void moe_speculation_place(moe_session *session);
/* The row of a node of the tree. */
moe_kv_row moe_speculation_row(const moe_session *session, uint32_t node);
/* The logits of a node, in the nodes' order: the walk. */
void moe_speculation_visit(moe_session *session, uint32_t node, const float *logits);
/* After the pass: the accepted path joins the timeline. */
int moe_speculation_settle(moe_session *session, moe_error *err);
/* After the walks, before they are settled: which rows of the pass stood, for what plain decoding
 * would have missed. */
void moe_speculation_stood(moe_engine *engine, moe_session *const *sessions, size_t n,
                           const uint32_t *first_row, const uint32_t *n_rows_of);
/* The iteration's cost: of n_rows rows of the pass n_tree_rows were trees'. */
void moe_speculation_end(moe_engine *engine, uint32_t n_rows, uint32_t n_emitted,
                         uint32_t n_tree_rows, uint64_t verify_ns, uint64_t wait_ns);

/* ---- Drafters ---- */

/* Nodes of a level of a branching tree. */
#define MOE_DRAFT_FRONTIER 16u

int moe_draft_ngram(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);
/* Silent drafts cost no row: they are kept, and compared with the tokens that then come, so that
 * the length controller knows what drafts would be worth before any was paid for. */
int moe_draft_ngram_silently(moe_engine *engine, moe_session *const *sessions, size_t n,
                             moe_error *err);
void moe_draft_ngram_hear(moe_session *session, uint32_t position, int32_t token);
int moe_draft_self(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);

/* The draft's logits after a node have come, by whatever model: adds its children, and those of
 * them that are worth going on from to the frontier. */
int moe_draft_expand(moe_engine *engine, moe_session *session, uint32_t node, const float *logits,
                     moe_error *err);
/* The greatest logit is all that expanding the session's nodes looks at; then it may come in place
 * of the logits. Its share is summed in floats, the probabilities of logits in doubles. */
bool moe_draft_takes_greatest(const moe_engine *engine, const moe_session *session);
void moe_draft_expand_greatest(moe_engine *engine, moe_session *session, uint32_t node,
                               const moe_greatest *greatest);
/* Before the first level: the root is the frontier. */
void moe_draft_begin_frontier(moe_session *session);
/* Of the frontier, the surest few stay, surest first. */
void moe_draft_narrow_frontier(moe_session *session, uint32_t most);
/* What is deeper goes; returns how many nodes. */
uint32_t moe_draft_cut_depth(moe_session *session, uint32_t depth);
/* After the last level: what is not worth its row goes; nothing of a drawn chain does. fetch_cost
 * (may be NULL): [depth + 1], of chains. */
void moe_draft_cut(moe_engine *engine, moe_session *session, const double *fetch_cost);

#endif
