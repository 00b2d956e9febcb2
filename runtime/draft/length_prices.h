/* SPDX-License-Identifier: MIT */
/* What the survival controller knows of a draft before it is made: how likely its tokens are to be
 * accepted, and what its rows cost.
 *
 * Acceptance is calibrated: decayed counts by depth and confidence bucket, with the bucket's count
 * over all depths as a prior, whose own prior is the confidence. Costs are kept as ratios to t_base
 * (the cost of plain decoding of a token), by rows and with fetches apart, so that a change that
 * affects everything (a longer KV cache, a slower clock) changes no ratio. Plain samples far from
 * their median are left out of t_base, and speculating ones are clipped at a multiple of the
 * expected cost, so that a stalled machine is not taken for the price of a draft.
 *
 * Among other sequences a rejected row costs less: an expert that it asks for is often asked for by
 * another sequence's row as well. How often is measured on plain passes of the same sequences: of
 * the misses of a pass, the share that the pass before, the two before, ... had neither asked for
 * nor evicted is what one row more of every sequence, a second one, ... would add to the misses of
 * a pass. For fewer than MOE_LENGTH_BATCH each counts in full: a rejected row belongs to another
 * text. A row that is added alone asks for more of its own than each of many: as many experts as
 * the rows of a plain pass choose alone, by the estimate of Good and Turing for what was not seen.
 *
 * Before a token was seen, acceptance in a batch is guessed from the share of the experts chosen by
 * plain rows that are in memory, if the draft is restricted to those: with all of them the draft is
 * the model. What was seen is forgotten while nothing is drafted, since that share changes.
 *
 * One thread at a time. */
#ifndef MOE_DRAFT_LENGTH_PRICES_H
#define MOE_DRAFT_LENGTH_PRICES_H

#include "runtime/draft/length_controller.h"

#define MOE_PRICES_DEPTHS        MOE_HABIT_DEPTHS
#define MOE_PRICES_BUCKETS       MOE_HABIT_BUCKETS
#define MOE_PRICES_WIDTHS        32u
#define MOE_PRICES_BASE_MEMORY   16u /* samples of a running mean */
#define MOE_PRICES_FIRST_SAMPLES 8u  /* samples before t_base is known, of one sequence */

typedef struct moe_acceptance_count {
    double seen, accepted;
} moe_acceptance_count;

typedef struct moe_running_mean {
    double mean;
    uint32_t n;
} moe_running_mean;

typedef struct moe_length_prices {
    moe_acceptance_count cells[MOE_PRICES_DEPTHS][MOE_PRICES_BUCKETS];
    moe_acceptance_count buckets[MOE_PRICES_BUCKETS];
    moe_acceptance_count depths[MOE_PRICES_DEPTHS];
    double plain[MOE_PRICES_BASE_MEMORY]; /* ring of the latest plain costs of a sequence's token */
    uint32_t n_plain;
    uint32_t n_cold;
    double last_plain;
    /* If misses are modelled, `plain` excludes the waits for experts, and this is what plain
     * decoding would have waited for each token of a sequence. */
    double plain_fetch;
    double compute_base;
    /* Ratios to the t_base of all sequences. Index: rows drafted for each sequence; 0: plain. */
    moe_running_mean compute[MOE_PRICES_WIDTHS], fetch[MOE_PRICES_WIDTHS];
    moe_running_mean draft_pass;
    double row_compute;        /* see moe_length_options */
    double first_draft_pass;   /* ... until there is one: in what a plain pass computes */
    double slope, fetch_slope; /* for each more row, where no width was seen */
    double first_slope, first_fetch_slope;
    uint32_t n_priced; /* iterations with drafts */
    uint32_t n_sequences;
    moe_running_mean
        resident; /* share of what plain rows choose that is in memory; n 0: not known */
    /* Of the experts that plain passes of a batch use, and of those that they miss, the share that
     * one row alone chose; n 0: not known. */
    moe_running_mean alone, missed_alone;
    moe_running_mean fresh[MOE_LENGTH_FRESH]; /* of a plain pass's misses: what a 1st, 2nd, ... row
                                       of every sequence adds; 1: no batch */
} moe_length_prices;

/* *prices must be all zero. */
void moe_length_prices_init(moe_length_prices *prices, const moe_length_options *options);
/* See moe_length_get_habit(). */
bool moe_length_prices_get_habit(const moe_length_prices *prices, moe_draft_tier tier,
                                 moe_draft_habit *habit);

/* The probability that a token of this depth (from 1) and confidence is accepted if those before it
 * are. */
double moe_length_prices_survival(const moe_length_prices *prices, uint32_t depth,
                                  float confidence);
/* The same for any token of this depth. */
double moe_length_prices_at_depth(const moe_length_prices *prices, uint32_t depth);
/* Notes whether a token was accepted, those before it having been. */
void moe_length_prices_note(moe_length_prices *prices, uint32_t depth, float confidence,
                            bool accepted);
/* Forgets a little of at_depth()'s tokens: an iteration of a batch has drafted nothing. */
void moe_length_prices_rest(moe_length_prices *prices);

/* The cost of a draft pass, in t_base. */
double moe_length_prices_draft(const moe_length_prices *prices);
/* The cost of verifying so many drafted rows, in t_base; fetch < 0: not known, as usual. */
double moe_length_prices_verify(const moe_length_prices *prices, uint32_t rows, double fetch);
/* What n_drafting sequences of a batch add to a plain pass by verifying so many drafted rows each,
 * in t_base of all: a row more of a few sequences shares fewer experts with others than one of
 * each. */
double moe_length_prices_added(const moe_length_prices *prices, uint32_t rows, uint32_t n_drafting);
/* The greatest utility (tokens per cost, relative to plain decoding) that any fixed depth up to
 * this promises. */
double moe_length_prices_utility(const moe_length_prices *prices, uint32_t max_depth);
/* Whether drafting and verifying on, after a path of `depth` tokens that survives with this
 * probability, is worth `rate` tokens a cost: the next token, or, in a batch, as many as
 * `most` tokens more, since the rows after the first ask for few experts of their own. n_sharing:
 * sequences that share a draft pass of this depth; the fewer, the more of it each pays. */
bool moe_length_prices_pays_on(const moe_length_prices *prices, uint32_t depth, double path,
                               double rate, uint32_t most, uint32_t n_sharing);
/* The greatest depth up to `most` that loses no more than `left`, in t_base, should tokens be
 * accepted as seldom as what was seen of them allows; `heard` false: should none be, or, if their
 * acceptance is guessed, as few as chance allows in one pass. n_drafting: sequences that draft; of
 * fewer than all, none may be accepted by chance. Of all of them, where acceptance is guessed,
 * fewer may be than is expected, by chance: that may lose a little more than `left`. */
uint32_t moe_length_prices_affordable(const moe_length_prices *prices, uint32_t most, double left,
                                      bool heard, uint32_t n_drafting);
/* The depth up to this with the greatest utility; at least 1. */
uint32_t moe_length_prices_best_depth(const moe_length_prices *prices, uint32_t max_depth);
/* The number of tokens that a verification of so long a draft writes. */
double moe_length_prices_tokens(const moe_length_prices *prices, uint32_t depth);

/* Whether acceptance in a batch is guessed from what is in memory. */
bool moe_length_prices_guesses(const moe_length_prices *prices);

/* True if the latest plain sample was so far below t_base that a second one must show whether it
 * was noise; until then losses may look like gains. */
bool moe_length_prices_in_doubt(const moe_length_prices *prices);
/* Samples before t_base is known. */
uint32_t moe_length_prices_first_samples(uint32_t n_sequences);
/* Learns an iteration's costs and keeps *base, the baseline of its number of sequences. */
void moe_length_prices_learn(moe_length_prices *prices, moe_length_base *base,
                             const moe_length_iteration *iteration);

#endif
