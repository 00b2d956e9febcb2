/* SPDX-License-Identifier: MIT */
/* Decides how many tokens to draft. Three controllers share this interface:
 *
 *   static    always K tokens.
 *   cascade   the controller of the Cascade paper: utility U = ETR / (t_spec / t_base), phases of
 *             testing and setting K by hill-climbing with early exits, and K = 0 with back-off
 *             while U < 1.
 *   survival  the chain with the greatest expected gain, computed from how likely its tokens are
 *             accepted and what its rows cost. It drafts only while a budget covers the possible
 *             loss.
 *
 * All decisions follow from what the caller reports: the controller reads no clock. Costs are in
 * any unit (nanoseconds, or a model's), the same in all calls. One controller serves all
 * sequences that are decoded together; if their number changes, a separate baseline begins. Not
 * thread-safe. */
#ifndef MOE_DRAFT_LENGTH_CONTROL_H
#define MOE_DRAFT_LENGTH_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/lab.h>

#include "runtime/sidecar/draft_habits.h"

typedef struct moe_length_control moe_length_control;

/* What drafts have lost so far against plain decoding, and what plain decoding would have cost so
 * far. Both are 0 at first. */
typedef struct moe_length_account {
    double plain, lost;
} moe_length_account;

typedef struct moe_length_options {
    moe_length_kind kind;
    uint32_t max_draft; /* K's ceiling (of a tree: its depth); static: K itself */
    /* survival: the cost of a draft pass, as a share of a plain pass's computing, that is assumed
     * until one was measured. 0: drafts need no passes. */
    double draft_pass;
    /* survival: the results of earlier runs with this drafter, or NULL. Only read at creation. */
    const moe_draft_habit *habit;
    moe_draft_tier tier;
    /* survival: the account of losses, shared by the controllers of all drafters; it must outlive
     * them. NULL: the controller has its own. */
    moe_length_account *account;
    /* Constants of Cascade, for ablations; 0 means the paper's value. */
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

/* Call before an iteration with n_sequences sequences. Returns the most tokens to draft for each
 * of them; 0: decode plainly. */
uint32_t moe_length_begin(moe_length_control *control, uint32_t n_sequences);

/* Returns the probability that a token at this depth (1: the first) is accepted if its parent is.
 * It is calibrated from the confidence, in [0, 1], that the drafter reports for the token. */
double moe_length_survival(const moe_length_control *control, uint32_t depth, float confidence);
/* Whether to draft one more token after a path of `depth` tokens (0: the root) that is accepted
 * with probability path_survival: whether it is worth its draft, and its row in the verification.
 * False beyond K. The controllers static and cascade: true up to K. n_sharing: how many sequences
 * share the draft pass; 0: drafting takes no pass. */
bool moe_length_continues(const moe_length_control *control, uint32_t depth, double path_survival,
                          uint32_t n_sharing);
/* Returns the expected gain of this iteration's draft, relative to plain decoding (1). 0:
 * unknown, or there is nothing to draft. For drafts that take no passes, call
 * moe_length_note_drafts() first. */
double moe_length_promise(const moe_length_control *control);
/* Reports drafts that took no passes: how many tokens of all sequences together are expected to
 * be accepted, and how many rows the drafts have. */
void moe_length_note_drafts(moe_length_control *control, double n_tokens, uint32_t n_rows);
/* Whether a node of a branching tree is worth its row in the verification and the experts that a
 * row usually needs, if its path is accepted with this probability. If it is, its parent is, too.
 * The controllers static and cascade: always true. */
bool moe_length_keeps(const moe_length_control *control, double path_survival);
/* Returns how many tokens of a drafted chain to verify. survival[i]: the probability that the
 * first i + 1 tokens are accepted. fetch_cost (may be NULL): [n + 1] the expected cost of missing
 * experts if the first i tokens are verified, in the unit of fetch_cost below. Assumes that
 * n_sharing sequences (0: all) draft the same length. The controllers static and cascade return
 * n, but at most K. */
uint32_t moe_length_cut(const moe_length_control *control, const double *survival,
                        const double *fetch_cost, uint32_t n, uint32_t n_sharing);

/* Call after verification, for each drafted token whose parent was accepted. */
void moe_length_note_token(moe_length_control *control, uint32_t depth, float confidence,
                           bool accepted);

/* Whether the caller should also report silent drafts to moe_length_note_token(). Silent drafts
 * are not verified, but compared with the tokens that are written afterwards. */
bool moe_length_hears_silent_drafts(const moe_length_control *control);

/* Call if nothing is to be drafted. Returns how many tokens to draft silently by passes of a
 * model (0: none), to learn their acceptance before a verification spends rows on them. Only in
 * batches. Until the iteration ends, moe_length_continues() is true up to this many tokens. */
uint32_t moe_length_listen(moe_length_control *control);
/* Whether the next iterations will certainly draft nothing. */
bool moe_length_rests(const moe_length_control *control);
/* Whether this iteration must be plain decoding, without any drafter, to measure the baseline. */
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
    /* If misses are modelled: the time that this pass waits for experts, and the time that the
     * plain passes which would have written the same tokens would wait. If not, these and the
     * following members are 0. */
    bool models_misses;
    bool is_booked; /* another controller that shares the account has booked it */
    double modelled_fetch, plain_fetch;
    /* Of the misses of these plain passes, the share (0 to 1) of experts that the previous plain
     * pass neither used nor evicted. Negative: unknown. */
    double fresh;
    /* Of the experts that the rows of these plain passes chose, the share (0 to 1) in memory. The
     * acceptance of a draft that is restricted to experts in memory depends on it. Negative:
     * unknown, or there is no such draft. */
    double resident_share;
} moe_length_iteration;

void moe_length_end(moe_length_control *control, const moe_length_iteration *iteration);

/* Adds what this controller has learnt to *habit, which may already hold the counts of earlier
 * runs. Returns false if it has learnt nothing. */
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
/* Returns K of each iteration so far, the oldest first, for traces and plots. Valid until the
 * next call. */
const uint8_t *moe_length_trace(const moe_length_control *control, uint64_t *n);

#endif
