/* SPDX-License-Identifier: MIT */
/* Counts the routers' choices while the engine is in use, to add them to the sidecar
 * (moe_learn_begin() in moe/calibrate.h). */
#ifndef MOE_SIDECAR_LEARNING_H
#define MOE_SIDECAR_LEARNING_H

#include "runtime/pass/pass.h"
#include "runtime/sidecar/model_sidecar.h"

typedef struct moe_learning moe_learning;

/* Observes all passes of the runner from now on, until it is freed. */
int moe_learning_open(moe_learning **out, moe_runner *runner, moe_error *err);
/* NULL is allowed. */
void moe_learning_free(moe_learning **learning);
/* Sets the counts to zero. */
void moe_learning_start_over(moe_learning *learning);
/* Adds the counts to the sidecar at `path`, or to a new sidecar, and sets them to zero. drafts:
 * what is known about drafts now, or NULL. Sets *n_tokens to the number of tokens counted. Fails
 * with MOE_ERR_ARGUMENT if no token was counted, or learning is NULL. */
int moe_learning_save(moe_learning *learning, const moe_sidecar_model *model,
                      const moe_draft_habits *drafts, const char *path, uint64_t *n_tokens,
                      moe_error *err);

#endif
