/* SPDX-License-Identifier: MIT */
/* A session for scoring, which only evaluates. */
#ifndef CLI_SCORE_H
#define CLI_SCORE_H

#include <moe/moe.h>

#include "cli_options.h"

/* Evaluates tokens from the start of an emptied timeline, and passes each position's logits to
 * visit. If visit returns false, it ends early without an error. Returns an exit code. */
int cli_score(moe_session *session, const int32_t *tokens, size_t n, moe_logits_fn visit,
              void *user);

/* Opens an evaluate-only session, which Ctrl-C cancels. Close it with cli_score_close(). */
int cli_score_open(moe_session **session, moe_engine *engine);
void cli_score_close(moe_session **session);

#endif
