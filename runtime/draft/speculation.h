/* SPDX-License-Identifier: MIT */
/* Speculative decoding. A step of the engine with speculation has three parts:
 *
 *   draft   makes a token tree for each session that writes: from n-grams of its own text, by the
 *           model itself restricted to the experts in memory, by a drafting layer, or by a second,
 *           small model.
 *   verify  one pass over all nodes of the trees (runtime/engine/step.c). Each missing expert is
 *           moved once. While the logits arrive, runtime/draft/accept.h walks through each tree and
 *           accepts tokens.
 *   commit  the accepted path becomes part of the timeline; the rest is dropped.
 *
 * Speculation is lossless: with the lossy modes off, the text is that of plain decoding, both
 * greedy and sampled with the same seed. With acceptance by rejection, sampled tokens have the
 * same distribution as in plain sampling. Costs are measured as time or modelled in bytes
 * (byte_cost.h), and reported to the length controllers, one for each kind of drafter. */
#ifndef MOE_DRAFT_SPECULATION_H
#define MOE_DRAFT_SPECULATION_H

#include <stdatomic.h>

#include <moe/status.h>
#include <moe/types.h>

#include "offload/expert_store.h"
#include "runtime/draft/accept.h"
#include "runtime/draft/byte_cost.h"
#include "runtime/draft/draft_route.h"
#include "runtime/draft/foresight.h"
#include "runtime/draft/length_control.h"
#include "runtime/draft/suffix_draft.h"
#include "runtime/draft/token_tree.h"
#include "runtime/model/tokenizer.h"
#include "runtime/pass/kv_cache.h"
#include "runtime/pass/pass_hooks.h"
#include "runtime/pass/route_rules.h"
#include "runtime/pass/state_pool.h"
#include "runtime/sampling/sampler.h"
#include "runtime/sidecar/calibration.h"

typedef enum moe_drafter {
    MOE_DRAFTER_NGRAM,
    MOE_DRAFTER_SELF,
    MOE_DRAFTER_MODEL,
    MOE_DRAFTER_HEAD, /* a drafting layer */
    MOE_DRAFTERS,
    MOE_DRAFTER_NONE = MOE_DRAFTERS
} moe_drafter;

struct moe_miss_model;
typedef struct moe_lookahead moe_lookahead;   /* lookahead.h */
typedef struct moe_ahead_line moe_ahead_line; /* lookahead.h: a session's part */
typedef struct moe_draft_head moe_draft_head; /* draft_head.h */
typedef struct moe_head_line moe_head_line;   /* draft_head.h: a session's part */

#define MOE_MOST_DRAFT   63u /* tokens in a row */
#define MOE_SILENT_DRAFT 4u

/* A session's timeline at the beginning of a step. */
typedef struct moe_draft_line {
    int32_t *tokens; /* with room behind its end for a draft and the token after it */
    uint32_t n_tokens, n_evaluated;
    bool writes;   /* its one row in the pass is the token sampled last */
    bool ends;     /* nothing may be drafted: the context is full */
    uint32_t left; /* tokens that the context has room for */
} moe_draft_line;

/* A silent draft: a chain behind the first `at` tokens of the timeline. It is not verified, but
 * compared with the tokens that are then written. */
typedef struct moe_silent_draft {
    int32_t tokens[MOE_SILENT_DRAFT];
    float confidence[MOE_SILENT_DRAFT];
    uint32_t n, n_right, at; /* of n tokens n_right have proved right so far */
} moe_silent_draft;

/* A session's part of speculation. */
typedef struct moe_session_draft {
    /* These members point into the session. The engine sets `line` before moe_speculation_draft()
     * in each step. */
    moe_draft_line line;
    moe_sampler *sampler;
    moe_kv_table *kv;
    moe_state_table *states;
    const _Atomic bool *cancelled;
    moe_token_tree tree; /* this step's drafts; only the root: plain decoding */
    bool active;         /* the tree is this step's rows */
    moe_drafter drafter; /* the drafter that made the tree */
    double *survival;    /* [nodes] calibrated probability that the path to the node is accepted */
    float *confidence;   /* [nodes] the drafter's confidence in the node itself */
    bool is_chain;
    uint32_t *path; /* [nodes][path_stride]: of a branching tree, where the rows of a node's path
                       are stored */
    uint32_t path_stride;
    uint32_t *frontier; /* [nodes] while drafting: nodes to go on from */
    uint32_t n_frontier;
    uint32_t max_nodes; /* the most nodes in this step, including the root */
    uint32_t max_depth; /* ... of the current drafter */
    uint32_t room;      /* ... of any drafter */
    /* The walk. */
    uint32_t current; /* deepest accepted node */
    int32_t next;     /* the token after `current`, once it is decided */
    bool decided;
    /* For temperatures above 0: element i is the distribution from which the child of node i of a
     * chain was drawn. */
    moe_distribution *drawn; /* [max depth + 1] */
    uint32_t *drawn_capacity;
    uint32_t n_drawn;
    bool is_drawn;
    moe_silent_draft silent[MOE_DRAFTERS];
    moe_random random;        /* for drawing drafts */
    moe_random random_before; /* the state of `random` when the step began */
    moe_suffix_index *suffix;
    moe_ahead_line *ahead; /* NULL: no lookahead */
    moe_head_line *head;   /* NULL: no drafting layer */
    moe_session *mirror;   /* session of a second model that drafts; its maker closes it */
} moe_session_draft;

/* One row of a draft pass. */
typedef struct moe_draft_row {
    moe_session_draft *draft;
    uint32_t node;
} moe_draft_row;

typedef struct moe_speculation moe_speculation;

/* The parts of the engine that speculation uses; all of them must outlive it. */
typedef struct moe_draft_parts {
    moe_runner *runner; /* with its config and plan at open, complete at moe_speculation_attach() */
    const moe_tensor_map *map;
    const moe_tokenizer *tokenizer;     /* or NULL; drafts end at tokens that end a generation */
    const moe_calibration *calibration; /* or NULL */
    const float *hotness;               /* [n_layer][n_expert] or NULL */
    uint32_t max_rows;                  /* of a pass */
    bool is_behind_link;                /* missing experts come to a device */
    /* Drafts with a second model, for all sessions whose draft is active; NULL if there is no
     * second model. */
    int (*run_model)(void *model, moe_speculation *speculation, moe_session_draft *const *drafts,
                     size_t n, moe_error *err);
    void *model;
    moe_draft_head *head; /* NULL: no drafting layer; loaded before the first draft */
} moe_draft_parts;

struct moe_speculation {
    /* Set at open, never changed. */
    moe_draft_parts parts;
    moe_runner *runner;
    const moe_route_rules *rules;
    moe_pass_hook hook;
    uint64_t expert_bytes; /* of one expert, on average */
    uint32_t max_rows;
    bool use[MOE_DRAFTERS];
    bool is_auto; /* the self draft is left to batches */
    uint32_t max_draft;
    uint32_t tree_nodes;    /* drafted nodes of a branching tree; 0: chains */
    uint32_t draft_experts; /* experts of a layer that the self draft uses; 0: all resident ones */
    bool draws;             /* chains above temperature 0 are drawn, and accepted by rejection */
    moe_draft_pin pin;
    moe_draft_fill fill;
    const uint16_t *affinity; /* [n_layer][n_expert][n_expert], or NULL */
    uint16_t *shuffled;       /* owned, or NULL */
    bool foresight;
    uint64_t verify_bytes; /* lossless limit of bytes; 0: none */
    /* Changed by steps. */
    moe_length_control *control[MOE_DRAFTERS];
    moe_length_account account; /* of all drafters together */
    bool begun[MOE_DRAFTERS];   /* the drafter's control was asked for a length in this step */
    bool by_bytes;              /* costs are modelled in bytes; else they are times */
    moe_byte_cost byte_cost;
    struct moe_miss_model *misses; /* NULL: all experts fit, and costs are times */
    moe_foresight foresees;
    moe_lookahead *ahead; /* NULL: off */
    moe_random random;    /* for the baselines that pin or fill at random */
    float *score;         /* [n_expert] */
    bool *resident;       /* [n_expert] of the current layer */
    uint32_t *pinned;     /* [n_layer][n_expert]: the experts kept last */
    uint32_t *n_pinned;   /* [n_layer] */
    double miss_cost;     /* of one missing expert, moving average */
    uint64_t misses_before;
    double plain_wait, plain_missed; /* fading sums over plain passes */
    uint32_t n_writing;              /* sessions that write in this step */
    double draft_cost;               /* cost of this step's drafts */
    uint32_t n_draft_passes;
    uint64_t n_draft_experts;   /* distinct ones of the layers of a draft pass */
    moe_head_work head_work;    /* ... of a drafting layer, also to keep up with the text */
    uint32_t n_recorded_passes; /* of n_draft_passes, those that the device routed by itself */
    uint32_t *accepted_rows;    /* [max_rows] rows that plain decoding would have had */
    uint32_t *accepted_of;      /* [max_rows] the place of each such row's session in the step */
    /* Arrays for the rows of a draft pass, [max_rows]. */
    moe_draft_row *rows;
    int32_t *pass_tokens;
    uint32_t *pass_depths;
    moe_kv_row *pass_kv;
    uint32_t *pass_logit_rows;
    moe_state_run *pass_states;
    moe_drafter drafter; /* the drafter of this step */
    bool is_silent;      /* the draft under way will not be verified */
    uint32_t n_sharing;  /* sequences whose chains share the draft pass under way; 0: not known */
    moe_speculation_stats stats;
};

/* Opens speculation. *out stays NULL if the options ask for none. */
int moe_speculation_open(moe_speculation **out, const moe_draft_parts *parts,
                         const moe_engine_options *options, moe_error *err);
/* Adds speculation's hook to the runner, which is complete by now. rules must outlive
 * speculation. */
int moe_speculation_attach(moe_speculation *speculation, const moe_route_rules *rules,
                           moe_error *err);
/* Closes speculation. No pass may be running. */
void moe_speculation_close(moe_speculation **speculation);
/* Fills in *stats. Leaves it unchanged if speculation is NULL. */
void moe_speculation_get_stats(const moe_speculation *speculation,
                               const moe_expert_store_stats *experts, moe_speculation_stats *stats);
/* Gets each drafter's results: those of this run if it drafted in this run, otherwise those of
 * earlier runs. False: nothing is known, or speculation is NULL. */
bool moe_speculation_get_habits(const moe_speculation *speculation, moe_draft_habits *habits);
/* Checks the options of speculation: their names and combinations. */
int moe_speculation_check(const moe_engine_options *options, moe_error *err);

/* Fails with MOE_ERR_ARGUMENT if the options ask for lookahead but the policy does not use
 * forecasts. */
int moe_speculation_check_policy(const moe_engine_options *options, const moe_policy *policy,
                                 moe_error *err);

/* Whether costs are modelled in bytes. Then everything that depends on when reads arrive
 * (prefetch, foresight) is off unless the options name it, so that the experts in memory, the
 * drafts and their lengths are the same in every run. */
bool moe_speculation_by_bytes(const moe_engine_options *options);
/* Returns the number of rows of a lookahead draft that runs in pieces while passes wait; 0: no
 * such draft. In a run that must be repeatable it only runs if the options name it, because it
 * depends on how long experts take to arrive. */
uint32_t moe_speculation_piece_rows(const moe_engine_options *options, const moe_device *device);
/* Returns how many rows a session's chain may have in a pass, including the root; 0: no drafts. */
uint32_t moe_speculation_chain_rows(const moe_engine_options *options);
/* Returns how many rows a session's log of recurrent layers has: those of a chain, and behind
 * them those of lookahead. */
uint32_t moe_speculation_log_rows(const moe_engine_options *options);
/* Whether these options may lead to a self draft, and (*has_affinity) to one that uses a table of
 * affinities between experts. */
bool moe_speculation_may_self(const moe_engine_options *options, bool *has_affinity);
/* Returns how many experts of each layer are kept in memory from the beginning (draft pin
 * hot-global); 0 for other settings. */
uint32_t moe_speculation_kept_experts(const moe_engine_options *options);

/* Creates a session's part. It uses the sampler, kv, states and cancelled of `session`, which
 * must outlive it. */
int moe_session_draft_create(moe_session_draft **out, const moe_speculation *speculation,
                             const moe_session_draft *session, moe_error *err);
/* Derives the random numbers for drafts from the state of the session's sampler. Call it whenever
 * the sampler is created, gets a new seed, or is loaded, because a random number that the
 * timeline already depends on must never be used again. */
void moe_session_draft_seed(moe_session_draft *draft, const moe_random *sampler);
void moe_session_draft_free(moe_session_draft **draft);

/* ---- One step: the functions in the order of their calls ---- */

/* Returns how many tokens the timeline's array must have room for behind its end before the
 * step. */
uint32_t moe_speculation_room(const moe_speculation *speculation, const moe_draft_line *line);
/* Drafts for the sessions that write. n_busy of the n sessions have rows in the coming pass.
 * Afterwards draft->active says which sessions have a tree. */
int moe_speculation_draft(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                          uint32_t n_busy, moe_error *err);
/* Returns the row for a node of the tree. */
moe_kv_row moe_speculation_row(const moe_session_draft *draft, uint32_t node);
/* Continues the walk with the logits of a node; the nodes come in order. Returns whether the walk
 * has passed through this node. */
bool moe_speculation_visit(moe_speculation *speculation, moe_session_draft *draft, uint32_t node,
                           const float *logits);
/* Reports the accepted rows of the pass to the miss model. Call it after the walks and before
 * they are committed. */
void moe_speculation_note_accepted(moe_speculation *speculation, moe_session_draft *const *drafts,
                                   size_t n, const uint32_t *first_row, const uint32_t *n_rows_of);
/* Call these before and after a chunk of a panel (a long prompt). The miss model records its
 * experts, but a chunk tells nothing about decoding. */
void moe_speculation_begin_chunk(moe_speculation *speculation, uint32_t layer);
void moe_speculation_end_chunk(moe_speculation *speculation, uint32_t n_rows);
/* Gives the hidden states of a session's rows (of a tree: of its accepted path) to the drafting
 * layer, if there is one. Call it after a pass and before its walks are committed. The rows begin
 * at draft->line.n_evaluated. */
int moe_speculation_keep_states(moe_speculation *speculation, moe_session_draft *draft,
                                uint32_t first_row, uint32_t n_rows, moe_error *err);
/* Records the iteration's cost. Of the n_rows rows of the pass, n_tree_rows belonged to trees. */
void moe_speculation_end(moe_speculation *speculation, uint32_t n_rows, uint32_t n_emitted,
                         uint32_t n_tree_rows, uint64_t verify_ns, uint64_t wait_ns);
/* Moves keys and values of the accepted path to their places in the timeline. Sets *n_accepted to
 * the number of accepted tokens, which are in the timeline's array behind its end; draft->next
 * follows them. The engine then appends them to the timeline. */
int moe_speculation_commit(moe_speculation *speculation, moe_session_draft *draft,
                           uint32_t *n_accepted, moe_error *err);

/* Returns the forecasts that lookahead gave to the expert caches before this pass; *n = 0: none.
 * Valid until the next step. */
const moe_policy_forecast *moe_speculation_forecasts(const moe_speculation *speculation,
                                                     uint64_t pass, size_t *n);

/* ---- For passes whose routing a device computes by itself ---- */

/* Sets which experts of the layer a draft may use now, [n_expert]. */
void moe_draft_residents(const moe_speculation *speculation, uint32_t layer, bool *resident);
/* Records, for foresight, the experts [n_used] that the router chose for a row of a draft, and
 * begins to read them. Does nothing without foresight. */
void moe_draft_foresee(moe_speculation *speculation, const moe_pass *pass, uint32_t layer,
                       uint32_t row, const uint32_t *experts);
/* For a pass that is not a draft, whose buffers hold the routers' choices: scores foresight, and
 * updates the model of plain decoding. */
void moe_draft_note_routes(moe_speculation *speculation, const moe_pass *pass, uint32_t layer);

#endif
