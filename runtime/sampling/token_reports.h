/* SPDX-License-Identifier: MIT */
/* Keeps the model's probabilities of tokens that a sampler chose until the program takes them.
 *
 * A report belongs to a position of the timeline. A walk through a draft reports each choice as it
 * makes it; if its step fails and is made again, the reports from there on are replaced. */
#ifndef MOE_SAMPLING_TOKEN_REPORTS_H
#define MOE_SAMPLING_TOKEN_REPORTS_H

#include <moe/sampling.h>

typedef struct moe_token_reports {
    int n_top; /* -1: no reports */
    uint32_t n;
    uint32_t *positions;      /* [n] ascending */
    moe_token_report *values; /* [n], of MOE_REPORTS_KEPT */
} moe_token_reports;

int moe_token_reports_set(moe_token_reports *reports, int n_top, moe_error *err);
void moe_token_reports_free(moe_token_reports *reports);
/* Reports that the token at that position was chosen from these logits. Does nothing without
 * reports. */
void moe_token_reports_add(moe_token_reports *reports, const float *logits, uint32_t n_vocab,
                           size_t position, int32_t token);
/* Takes reports on positions below n_tokens, the timeline's length, and drops those behind it. */
size_t moe_token_reports_take(moe_token_reports *reports, size_t n_tokens, moe_token_report *out,
                              size_t capacity);

#endif
