/* SPDX-License-Identifier: MIT */
/* What a session's sampler obeys besides moe_sampling, and what it tells of its choices. All of it
 * holds for drafts, too: a draft is verified by the same sampler, so the text does not depend on
 * speculation. Forks inherit it; saved sessions do not hold it.
 *
 * A logit is changed in this order: the bias of its token, repeat_penalty, presence_penalty and
 * frequency_penalty. Then come the choice of the greatest, or the filters and the draw.
 *
 * Threads (the groups are explained in moe.h):
 *   in turn: moe_session_set_biases, moe_session_set_reports, moe_session_take_reports */
#ifndef MOE_SAMPLING_H
#define MOE_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

#include <moe/moe.h>
#include <moe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_token_bias {
    int32_t token;
    float bias; /* added to the token's logit; -INFINITY: the token is never chosen */
} moe_token_bias;

/* Replaces the session's biases from its next token on; n = 0: none. The array is copied. A token
 * that is named twice gets both. */
MOE_API int moe_session_set_biases(moe_session *session, const moe_token_bias *biases, size_t n,
                                   moe_error *err);

enum { MOE_MOST_TOP_TOKENS = 20, MOE_REPORTS_KEPT = 256 };

typedef struct moe_token_chance {
    int32_t token;
    float logprob; /* natural logarithm of its probability */
} moe_token_chance;

/* The probabilities that the model gave before a token was chosen: the softmax of all its logits,
 * before biases, penalties, filters and temperature. */
typedef struct moe_token_report {
    moe_token_chance chosen;
    uint32_t n_top;
    moe_token_chance top[MOE_MOST_TOP_TOKENS]; /* the likeliest, in order; ties to the lower id */
} moe_token_report;

/* Has the session report on the tokens that it samples from now on, with the n_top likeliest of
 * each position, 0..MOE_MOST_TOP_TOKENS; -1: no reports, the default. */
MOE_API int moe_session_set_reports(moe_session *session, int n_top, moe_error *err);
/* The reports on tokens sampled since the last call, in their order, at most capacity; returns how
 * many. Those of the last MOE_REPORTS_KEPT tokens are kept. */
MOE_API size_t moe_session_take_reports(moe_session *session, moe_token_report *reports,
                                        size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
