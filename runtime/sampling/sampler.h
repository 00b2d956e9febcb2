/* SPDX-License-Identifier: MIT */
/* Chooses the next token from logits: biases and penalties, then greedy at temperature 0, else
 * top-k, top-p and min-p (on the probabilities at temperature 1, as other engines do), then
 * temperature. */
#ifndef MOE_SAMPLING_SAMPLER_H
#define MOE_SAMPLING_SAMPLER_H

#include <moe/status.h>
#include <moe/types.h>
#include <moe/sampling.h>

#include "runtime/base/random.h"
#include "runtime/grammar/token_constraint.h"
#include "runtime/sampling/candidate_order.h"
#include "runtime/sampling/distribution.h"
#include "runtime/sampling/token_reports.h"

typedef struct moe_sampler {
    moe_sampling settings;
    moe_random random;
    uint32_t n_vocab;
    moe_candidate *candidates; /* [n_vocab] */
    moe_candidate *spare;      /* [n_vocab]: scratch of the ordering */
    moe_choice *choices;       /* [n_vocab] */
    uint8_t *seen;             /* [n_vocab]: scratch of the penalties */
    void *memory;              /* holds the four arrays */
    moe_token_bias *biases;    /* [n_biases] */
    size_t n_biases;
    moe_token_reports reports;
    moe_token_constraint *constraint; /* NULL: no grammar */
} moe_sampler;

/* Copies the fields that the program set over *sampling, which holds the defaults, and checks all
 * fields. */
int moe_sampling_take(moe_sampling *sampling, const moe_sampling *given, moe_error *err);
/* The memory that a sampler takes. */
uint64_t moe_sampler_bytes(uint32_t n_vocab);
int moe_sampler_init(moe_sampler *sampler, const moe_sampling *settings, uint32_t n_vocab,
                     moe_error *err);
void moe_sampler_free(moe_sampler *sampler);
void moe_sampler_seed(moe_sampler *sampler, uint64_t seed);

/* Copies the biases, after checking them; on error the old ones stay. */
int moe_sampler_set_biases(moe_sampler *sampler, const moe_token_bias *biases, size_t n,
                           moe_error *err);
/* Makes the grammar constrain the tokens that are sampled from position `start` on; NULL: no
 * grammar. */
int moe_sampler_set_grammar(moe_sampler *sampler, moe_grammar *grammar, const moe_token_keys *keys,
                            size_t start, moe_error *err);
/* Copies what a fork inherits: the generator's state, biases, grammar, whether there are reports.
 */
int moe_sampler_inherit(moe_sampler *sampler, const moe_sampler *from, moe_error *err);

/* Whether the next token is always that of the greatest logit (ignoring NaN; of equal ones the
 * lowest token), independent of the tokens before. */
bool moe_sampler_takes_greatest(const moe_sampler *sampler);

/* The distribution that the next token is drawn from: descending p, not normalised; temperature 0
 * leaves one choice. It points into the sampler, until its next call. Never empty, even if logits
 * are not finite. */
void moe_sampler_distribution(moe_sampler *sampler, const float *logits, const int32_t *recent,
                              size_t n_recent, moe_distribution *out);
/* Draws a token. At temperature 0 it uses no random number. */
int32_t moe_sampler_draw(moe_sampler *sampler, const moe_distribution *distribution);
/* Advances as if one token had been drawn. */
void moe_sampler_skip(moe_sampler *sampler);

/* Distribution, draw and report together. recent: the timeline's tokens; its last repeat_last ones
 * are penalised. Always returns an id in [0, n_vocab), even if logits are not finite. */
int32_t moe_sampler_next(moe_sampler *sampler, const float *logits, const int32_t *recent,
                         size_t n_recent);

#endif
