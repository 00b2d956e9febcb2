/* SPDX-License-Identifier: MIT */
/* Biases for a session's sampler, and reports on its choices. Both apply to drafts, too: the same
 * sampler verifies a draft, so the text does not depend on speculation. Forks inherit biases and
 * reports; saved sessions do not contain them.
 *
 * A logit is changed in this order: the bias of its token, repeat_penalty, presence_penalty and
 * frequency_penalty. Then the sampler takes the greatest logit (greedy), or filters and draws.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_sampling_init_sized, moe_sampling_init, moe_token_report_make
 *   in turn: moe_session_set_biases, moe_session_set_reports, moe_session_take_reports */
#ifndef MOE_SAMPLING_H
#define MOE_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

#include <moe/status.h>
#include <moe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_sampling {
    size_t struct_size;   /* set by moe_sampling_init() */
    float temperature;    /* >= 0; 0: greedy, ties to the lower id. Default 0.8 */
    uint32_t top_k;       /* 0: off. Default 40 */
    float top_p;          /* (0, 1]; 1: off. Default 0.95 */
    float min_p;          /* [0, 1); 0: off. Default 0.05 */
    float repeat_penalty; /* > 0; 1: off. Default 1. Also changes a greedy choice */
    uint32_t repeat_last; /* tokens that the three penalties look back on. Default 64 */
    uint64_t seed;        /* of the session's own generator. Default 0 */
    /* Subtracted from the logit of a token that is among the last repeat_last: presence_penalty
     * once, frequency_penalty once per occurrence. [-1000, 1000]; 0: off, the default */
    float presence_penalty;
    float frequency_penalty;
    uint64_t reserved[2]; /* must be 0 */
} moe_sampling;

MOE_API void moe_sampling_init_sized(moe_sampling *sampling, size_t struct_size);
static inline void moe_sampling_init(moe_sampling *sampling)
{
    moe_sampling_init_sized(sampling, sizeof *sampling);
}

typedef struct moe_token_bias {
    int32_t token;
    float bias; /* added to the token's logit; -INFINITY: the token is never chosen */
} moe_token_bias;

/* Replaces the session's biases from its next token on; n = 0: none. The array is copied. A token
 * that is named twice gets the sum of both biases. */
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

/* Makes the session report on the tokens that it samples from now on, with the n_top likeliest of
 * each position, 0..MOE_MOST_TOP_TOKENS; -1: no reports, the default. */
MOE_API int moe_session_set_reports(moe_session *session, int n_top, moe_error *err);
/* Takes the reports on tokens sampled since the last call, in their order, at most capacity;
 * returns their number. The session keeps reports of the last MOE_REPORTS_KEPT tokens. */
MOE_API size_t moe_session_take_reports(moe_session *session, moe_token_report *reports,
                                        size_t capacity);
/* Makes the report on a token from logits: [n_vocab], of the position before the token, as
 * moe_position_fn (moe/embedding.h) and moe_logits_fn get them. n_top: 0..MOE_MOST_TOP_TOKENS */
MOE_API int moe_token_report_make(moe_token_report *report, const float *logits, uint32_t n_vocab,
                                  int32_t token, int n_top, moe_error *err);

#ifdef __cplusplus
}
#endif

#endif
