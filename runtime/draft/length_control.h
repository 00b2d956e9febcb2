/* SPDX-License-Identifier: MIT */
/* How many tokens to draft. Three controllers behind one contract:
 *  static    always K
 *  cascade   the Cascade paper: utility U = ETR / (t_spec / t_base), test and set phases,
 *            hill-climbing with early exits, K = 0 and back-off when U < 1
 *  survival  the chain of the greatest expected gain, by how likely its tokens are to survive and
 *            by what its rows cost, as far as a budget allows to lose it
 *
 * All decisions follow from what the caller reports: the controller reads no clock. Costs are in
 * any unit (nanoseconds, or a model's), the same in all calls. One controller serves the sequences
 * that are decoded together; a change of their number starts a separate baseline. Not thread-safe.
 */
#ifndef MOE_DRAFT_LENGTH_CONTROL_H
#define MOE_DRAFT_LENGTH_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/lab.h>

#include "runtime/sidecar/draft_habits.h"

typedef struct moe_length_control moe_length_control;

/* The cost that drafts have lost so far, and the cost of plain decoding so far. All zero at first.
 */
typedef struct moe_length_account {
    double plain, lost;
} moe_length_account;

typedef struct moe_length_options {
    moe_length_kind kind;
    uint32_t max_draft; /* K's ceiling (of a tree: its depth); static: K itself */
    /* survival: the assumed cost of a draft pass until one was measured, as a share of a plain
     * pass's computing. 0: drafts need no passes. */
    double draft_pass;
    /* survival: what earlier runs learnt of this drafter, or NULL; only read at creation. */
    const moe_draft_habit *habit;
    moe_draft_tier tier;
    /* survival: the account of losses, shared by the controllers of all drafters; it must outlive
     * them. NULL: the controller has its own. */
    moe_length_account *account;
    /* Cascade's constants; 0 means the paper's value. For the ablations. */
    uint32_t trial_iterations;    /* t: 4 */
    uint32_t test_trials;         /* 4, so that T = 16 */
    uint32_t set_iterations;      /* S: 16 */
    uint32_t baseline_iterations; /* 4 */
    uint32_t refresh_iterations;  /* 100 */
    bool no_back_off, no_early_exit, no_disable, no_climb;
} moe_length_options;

int moe_length_control_create(moe_length_control **out, const moe_length_options *options,
                              moe_error *err);
void moe_length_control_free(moe_length_control **control);

/* Call before an iteration of n_sequences: returns the most tokens to draft for each; 0: decode
 * plainly. */
uint32_t moe_length_begin(moe_length_control *control, uint32_t n_sequences);

/* While drafting: the calibrated probability that a token at this depth (1: the first), with its
 * drafter's `confidence` in [0, 1], is accepted, given that its parent is. */
double moe_length_survival(const moe_length_control *control, uint32_t depth, float confidence);
/* Whether one more token, after a path of `depth` tokens (0: the root) that survives with this
 * probability, is worth its draft and its row in the verification. False beyond K. static and
 * cascade: true up to K. n_sharing: the sequences whose drafts share the pass; 0: drafting takes no
 * pass. */
bool moe_length_continues(const moe_length_control *control, uint32_t depth, double path_survival,
                          uint32_t n_sharing);
/* The expected gain of this iteration's draft; plain decoding has 1. 0: not known, or nothing is to
 * be drafted. For drafts that take no passes, call moe_length_note_drafts() first. */
double moe_length_promise(const moe_length_control *control);
/* Reports drafts that took no passes, of all sequences together: the number of tokens expected to
 * be accepted, and of rows. */
void moe_length_note_drafts(moe_length_control *control, double n_tokens, uint32_t n_rows);
/* Whether a node of a branching tree, whose path survives with this probability, is worth its row
 * in the verification and the experts that a row usually needs. If it is, so is its parent. static
 * and cascade: always. */
bool moe_length_keeps(const moe_length_control *control, double path_survival);
/* How many tokens of a drafted chain to verify. survival[i]: probability of the path to token i +
 * 1. fetch_cost (may be NULL): [n + 1] expected cost of the misses when the first i tokens are
 * verified, in the unit of fetch_cost below. Prices one sequence as if n_sharing sequences (0: all)
 * drafted the same length. At most K; static and cascade: n up to K. */
uint32_t moe_length_cut(const moe_length_control *control, const double *survival,
                        const double *fetch_cost, uint32_t n, uint32_t n_sharing);

/* Call after verification for every drafted token whose parent was accepted. */
void moe_length_note_token(moe_length_control *control, uint32_t depth, float confidence,
                           bool accepted);

/* Whether to report silent drafts to moe_length_note_token(), too: drafts that were not verified
 * but compared with the tokens that were then written. */
bool moe_length_hears_silent_drafts(const moe_length_control *control);

/* Call when nothing is to be drafted. Returns how many tokens to draft silently with passes of a
 * model, so that their acceptance is known before a verification pays for rows; 0: none. Only in
 * batches. Until the iteration ends, moe_length_continues() is true up to this many. */
uint32_t moe_length_listen(moe_length_control *control);
/* Whether the next iterations are certain to draft nothing. */
bool moe_length_rests(const moe_length_control *control);
/* Whether the iteration must be plain, without a draft of any drafter, to measure the baseline. */
bool moe_length_wants_plain(const moe_length_control *control);

typedef struct moe_length_iteration {
    uint32_t n_sequences;
    uint32_t n_drafted;      /* tokens drafted, all sequences */
    uint32_t n_draft_passes; /* model passes of the draft; 0 for n-grams */
    uint32_t n_rows;         /* of the verification pass: n_sequences + the verified tokens */
    uint32_t n_emitted;      /* tokens written, all sequences */
    double draft_cost;
    double verify_cost; /* verification, acceptance and sampling; without drafts the whole iteration
                         */
    double fetch_cost;  /* the part of verify_cost spent waiting for experts */
    /* If misses are modelled (else the following fields are 0): the time that this pass waits for
     * experts, and the time for the plain passes that would have written the same tokens. */
    bool models_misses;
    bool is_booked; /* another controller that shares the account has booked it */
    double modelled_fetch, plain_fetch;
    /* The share of these plain passes' misses that the plain pass before had neither asked for nor
     * evicted, 0 to 1; below 0: not known. */
    double fresh;
    /* The share in memory of the experts that these plain passes' rows chose, 0 to 1. A draft that
     * is restricted to experts in memory depends on it. Below 0: not known, or there is no such
     * draft. */
    double resident_share;
} moe_length_iteration;

void moe_length_end(moe_length_control *control, const moe_length_iteration *iteration);

/* Adds what this controller has learnt to *habit, which may hold counts of earlier runs. False: it
 * has learnt nothing. */
bool moe_length_get_habit(const moe_length_control *control, moe_draft_habit *habit);

typedef struct moe_length_report {
    uint64_t n_iterations;
    uint64_t n_speculating;       /* with K > 0 */
    double base_cost;             /* t_base, the plain cost of a sequence's token */
    double utility;               /* of the last 16 iterations; 1 while nothing is known */
    double utility_harmonic_mean; /* over runs of 16 iterations */
    double utility_worst;         /* the least of them */
    uint32_t draft_length;        /* K now */
    uint64_t n_disabled;          /* how often K fell to 0 */
} moe_length_report;

void moe_length_get_report(const moe_length_control *control, moe_length_report *report);
/* K of each iteration so far, the oldest first; valid until the next call. For traces and plots. */
const uint8_t *moe_length_trace(const moe_length_control *control, uint64_t *n);

#endif
