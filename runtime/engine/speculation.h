/* SPDX-License-Identifier: MIT */
/* Speculation in the engine. One step with it:
 *
 *   draft    for every session that writes: a token tree, by n-grams of its own text, by the model
 *            itself restricted to the experts that are in memory, or by a second, small model
 *   verify   one pass over the trees' nodes (step.c), each missing expert moved once
 *   settle   the walk that runtime/speculate/accept.h describes has taken place as the logits came;
 *            the accepted path becomes part of the timeline, the rest is forgotten
 *
 * Lossless: with the lossy modes off, temperature 0 writes the text of plain decoding, and above 0
 * tokens have the distribution of plain sampling. Costs are measured in time, or modelled in bytes
 * (byte_cost.h), and told to the length controllers, one for each kind of drafter. */
#ifndef MOE_ENGINE_SPECULATION_H
#define MOE_ENGINE_SPECULATION_H

#include <moe/moe.h>

#include "runtime/engine/calibration.h"
#include "runtime/engine/foresight.h"
#include "runtime/engine/pass.h"
#include "runtime/speculate/accept.h"
#include "runtime/speculate/draft_route.h"
#include "runtime/speculate/length_control.h"
#include "runtime/speculate/suffix_draft.h"
#include "runtime/speculate/token_tree.h"

typedef enum moe_drafter {
    MOE_DRAFTER_NGRAM,
    MOE_DRAFTER_SELF,
    MOE_DRAFTER_MODEL,
    MOE_DRAFTERS,
    MOE_DRAFTER_NONE = MOE_DRAFTERS
} moe_drafter;

typedef struct moe_draft_model moe_draft_model;
typedef struct moe_byte_cost moe_byte_cost;

/* What a session has of it. */
typedef struct moe_session_draft {
    moe_token_tree tree; /* of this step; just the root: plain decoding */
    bool active;         /* the tree is this step's rows */
    moe_drafter drafter; /* whose tree it is */
    double *survival;    /* [nodes] calibrated probability that the path to the node is accepted */
    uint32_t *path;      /* [nodes][depth + 1] stored positions of a branching tree's rows */
    uint32_t *frontier;  /* [nodes] while drafting: nodes to go on from */
    uint32_t n_frontier;
    uint32_t max_nodes; /* this step, the root included */
    uint32_t max_depth;
    /* The walk. */
    uint32_t current; /* deepest accepted node */
    int32_t next;     /* what follows it, once decided */
    bool decided;
    /* Of temperatures above 0: the distribution that the child of chain node i was drawn from. */
    moe_distribution *drawn; /* [max depth + 1] */
    uint32_t *drawn_capacity;
    bool is_drawn;
    moe_random random; /* of drawing drafts */
    moe_suffix_index *suffix;
    struct moe_session *mirror; /* of a second model */
} moe_session_draft;

typedef struct moe_speculation {
    /* Set at open, never changed. */
    bool use[MOE_DRAFTERS];
    uint32_t max_draft;
    uint32_t tree_nodes; /* drafted nodes of a branching tree; 0: chains */
    uint32_t draft_experts; /* of a layer that the self draft uses; 0: all that are resident */
    moe_draft_pin pin;
    moe_draft_fill fill;
    moe_affinity affinity;
    bool foresight;
    uint64_t verify_bytes; /* lossless budget; 0: none */
    /* Changed by steps. */
    moe_length_control *control[MOE_DRAFTERS];
    bool begun[MOE_DRAFTERS]; /* asked for a length in this step */
    moe_draft_model *model;
    moe_byte_cost *byte_cost; /* NULL: costs are times */
    moe_foresight foresees;
    moe_random random; /* of the baselines that pin or fill at random */
    float *score;      /* [n_expert] */
    uint32_t *pinned;  /* [n_layer][n_expert]: what was kept last */
    uint32_t *n_pinned; /* [n_layer] */
    double miss_cost;  /* of one missing expert, moving average */
    uint32_t n_writing; /* sessions that write in this step */
    double draft_cost;
    uint32_t n_draft_passes;
    moe_drafter drafter; /* of this step */
    moe_speculation_stats stats;
} moe_speculation;

int moe_speculation_open(moe_speculation **out, moe_engine *engine,
                         const moe_engine_options *options, moe_error *err);
void moe_speculation_close(moe_speculation **speculation);
/* Checks the options alone: names and combinations. */
int moe_speculation_check(const moe_engine_options *options, moe_error *err);

int moe_session_draft_create(moe_session_draft **out, const moe_speculation *speculation,
                             uint64_t seed, moe_error *err);
void moe_session_draft_free(moe_session_draft **draft);

/* ---- One step, in this order; step.c calls ---- */

/* Drafts for the sessions that write. Afterwards draft->active says which have a tree. */
int moe_speculation_draft(moe_engine *engine, moe_session *const *sessions, size_t n,
                          moe_error *err);
/* Row `row` of a tree, at node: where it stands. */
moe_kv_row moe_speculation_row(const moe_session *session, uint32_t node);
/* The logits of a node, in the nodes' order: the walk. */
void moe_speculation_visit(moe_session *session, uint32_t node, const float *logits);
/* After the pass: the accepted path joins the timeline. Cannot fail but by the device. */
int moe_speculation_settle(moe_session *session, moe_error *err);
/* The iteration's cost. n_rows: of the verification pass. */
void moe_speculation_end(moe_engine *engine, uint32_t n_rows, uint32_t n_emitted,
                         double verify_cost, double fetch_cost);

/* ---- Drafters ---- */

int moe_draft_ngram(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);
int moe_draft_self(moe_engine *engine, moe_session *const *sessions, size_t n, moe_error *err);

/* The model's logits after a node have come, by whatever drafter: adds its children, and the
 * frontier's. False: this session's draft ends here. */
bool moe_draft_expand(moe_engine *engine, moe_session *session, uint32_t node, const float *logits);

#endif
